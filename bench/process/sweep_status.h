// How a sweep ended: the exit status of each of its processes.
#pragma once

namespace precbench {

inline constexpr int kSweepDone = 0;      ///< every case has a row
/// Every case has a row, but some rows say crashed or timeout, none says ok, or a file that a case was to write is lost.
inline constexpr int kSweepFailures = 1;
/// Some cases have no row yet: interrupted, a process was lost, the disk is full, or somebody has taken rows away.
inline constexpr int kSweepInterrupted = 130;

}  // namespace precbench
