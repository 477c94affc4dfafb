// Number of CPUs that this process may use: fewer than the machine has under taskset or in a container.
#pragma once

#include <filesystem>
#include <optional>

namespace precbench {

struct UsableCpus {
  int count = 1;                ///< CPUs in the affinity mask
  std::optional<double> quota;  ///< CPU seconds per second that the control groups allow; none: no limit

  /// Returns the number of threads that can run without being throttled, at least 1. The quota is rounded
  /// down, because one more thread would throttle all.
  int threads() const;
};

/// Reads the affinity mask of the calling thread and the quotas of both versions of control groups. `root`
/// replaces /.
UsableCpus usable_cpus(const std::filesystem::path& root = "/");

}  // namespace precbench
