// Exit statuses of the processes of a sweep.
#pragma once

namespace precbench {

inline constexpr int kSweepDone = 0;      ///< every case has a row
/// Every case has a row, but some say crashed or timeout, none says ok, or a file that a case should have
/// written is missing.
inline constexpr int kSweepFailures = 1;
/// Some cases have no row yet: interrupted, a process was lost, the disk is full, or rows have been removed.
inline constexpr int kSweepInterrupted = 130;

}  // namespace precbench
