// Reads /proc and control groups of both versions. See host_memory.h.
#include "bench/machine/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "kernels/base/control_groups.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Returns the number after `key` in a file of words, or the file's first word without a key. Null if it is
/// not a number ("max").
std::optional<std::int64_t> number_in(const fs::path& path, const std::string& key = "") {
  std::ifstream file(path);
  if (!key.empty())
    for (std::string word; file >> word && word != key;) continue;
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

/// File names of a memory control group.
struct MemoryFiles {
  const char *limit, *used, *cache;
};
constexpr MemoryFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr MemoryFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

/// Returns the bytes left in one group; null if it has no limit.
std::optional<std::int64_t> left_in(const fs::path& group, const MemoryFiles& names) {
  const auto limit = number_in(group / names.limit), used = number_in(group / names.used);
  if (!limit || !used) return std::nullopt;
  const std::int64_t cache = number_in(group / "memory.stat", names.cache).value_or(0);
  return std::max<std::int64_t>(0, *limit - *used + cache);
}

}  // namespace

std::optional<std::int64_t> available_memory(const fs::path& root) {
  std::optional<std::int64_t> least = number_in(root / "proc/meminfo", "MemAvailable:");
  if (least) *least *= 1024;  // given in kB
  for (const ControlGroup& group : control_groups("memory", root))
    if (const auto left = left_in(group.folder, group.version == 2 ? kVersion2 : kVersion1))
      least = std::min(least.value_or(*left), *left);
  return least;
}

std::optional<std::string> thread_limit_reason(int threads) {
  constexpr int kMostThreads = 4096;
  if (threads > kMostThreads)
    return fmt::format("OMP_NUM_THREADS: {} threads, at most {} are possible", threads, kMostThreads);
  // Measured with 1 to 8 threads: a small case needs less than this. A thread has a stack, an arena of the C
  // library, and a GEMM's packed operands.
  constexpr rlim_t kMiB = 1 << 20, kProgram = 256 * kMiB, kThread = 128 * kMiB;
  const rlim_t wanted = kProgram + kThread * static_cast<rlim_t>(threads);
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted)
    return std::nullopt;
  return fmt::format(
      "this process may use {} MiB of address space (ulimit -v), and needs {} with {}: raise the limit, or set "
      "OMP_NUM_THREADS",
      limit.rlim_cur / kMiB, wanted / kMiB, threads == 1 ? "one thread" : fmt::format("{} threads", threads));
}

}  // namespace precbench
