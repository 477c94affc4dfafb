// How a sweep ended: the exit status of each of its processes.
#pragma once

namespace precbench {

inline constexpr int kSweepDone = 0;      ///< every case has a row
inline constexpr int kSweepFailures = 1;  ///< the same, but some rows say crashed or timeout, or none says ok
/// Some cases have no row yet: interrupted, a process was lost, the disk is full, or somebody has taken rows away.
inline constexpr int kSweepInterrupted = 130;

}  // namespace precbench
