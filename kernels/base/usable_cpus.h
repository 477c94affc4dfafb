// How many CPUs this process may use, which is fewer than the machine has under taskset or in a container.
#pragma once

#include <filesystem>
#include <optional>

namespace precbench {

struct UsableCpus {
  int count = 1;                ///< CPUs in the affinity mask
  std::optional<double> quota;  ///< CPU seconds a second that the control groups allow; none: no limit

  /// Returns how many threads can run at one time without being throttled: the quota is rounded down, because what a
  /// thread more would use is taken from all. At least 1.
  int threads() const;
};

/// Asks the kernel for the affinity mask of the calling thread and reads the quotas of both versions of control groups.
/// `root` stands for /.
UsableCpus usable_cpus(const std::filesystem::path& root = "/");

}  // namespace precbench
