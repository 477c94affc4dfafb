// CPU time of this process, and the time its threads waited for a CPU: both tell whether other processes
// slowed a measurement.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace precbench {

/// One reading. Differences between two readings have a meaning, single readings do not.
struct CpuTime {
  double used_s = 0;  ///< of all threads of the process, in user and kernel mode
  /// Seconds that each thread, by id, was ready to run and waited for a CPU; empty where the kernel does not
  /// count them.
  std::map<std::string, double> waited_s{};
};

/// Reads the CPU time of this process. `tasks`: folder with a folder for each thread.
CpuTime read_cpu_time(const std::string& tasks = "/proc/self/task");

/// CPU and waiting time between two readings.
struct CpuTimeSpent {
  double used_s = 0;
  std::optional<double> waited_s{};  ///< all threads together; null where the kernel does not count it
};

/// Returns the time between two readings. Of threads that ended in between, the waiting time is unknown and
/// left out.
CpuTimeSpent cpu_time_between(const CpuTime& begin, const CpuTime& end);

}  // namespace precbench
