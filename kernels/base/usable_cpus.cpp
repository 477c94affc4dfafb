// Affinity mask and CPU quotas. See usable_cpus.h.
#include "kernels/base/usable_cpus.h"

#include <sched.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "kernels/base/control_groups.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Returns true if OpenMP may have pinned this thread to its own CPU at process start.
[[maybe_unused]] bool binds_threads() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("OMP_PROC_BIND") || set("OMP_PLACES") || set("GOMP_CPU_AFFINITY") || set("KMP_AFFINITY");
}

int cpus_in_mask() {
#ifdef _OPENMP
  if (binds_threads()) return std::max(1, omp_get_num_procs());  // from the original mask
#endif
  // The kernel rejects a set smaller than its own.
  constexpr int kMostCpus = 1 << 16;
  for (int cpus = 1024; cpus <= kMostCpus; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (!set) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    CPU_ZERO_S(bytes, set);
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::optional<double> number_in(std::istream& file) {
  double value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

/// Returns quota over period, both in microseconds. None if the group has no limit: version 2 says "max",
/// version 1 -1.
std::optional<double> quota_of(const ControlGroup& group) {
  std::optional<double> quota, period;
  if (group.version == 2) {
    std::ifstream file(group.folder / "cpu.max");
    quota = number_in(file), period = number_in(file);
  } else {
    std::ifstream quota_file(group.folder / "cpu.cfs_quota_us"),
        period_file(group.folder / "cpu.cfs_period_us");
    quota = number_in(quota_file), period = number_in(period_file);
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

}  // namespace

int UsableCpus::threads() const {
  const double most = quota ? std::min<double>(count, *quota) : count;
  return std::max(1, static_cast<int>(most));
}

UsableCpus usable_cpus(const fs::path& root) {
  UsableCpus cpus;
  cpus.count = cpus_in_mask();
  for (const ControlGroup& group : control_groups("cpu", root))
    if (const auto quota = quota_of(group)) cpus.quota = std::min(cpus.quota.value_or(*quota), *quota);
  return cpus;
}

}  // namespace precbench
