// Memory that a process on this host can still allocate before the kernel kills one, and the largest number
// of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace precbench {

/// Returns the bytes still available: the minimum over the host and each memory control group of this
/// process, counting page cache that can be dropped as free. Null if unknown. `root` stands for /.
std::optional<std::int64_t> available_memory(const std::filesystem::path& root = "/");

/// Returns why no case can run with so many threads: more than any machine has, which overflows the stack of
/// OpenMP's runtime, or more than fit into this process's limit of address space (ulimit -v). Null if a case
/// can run.
std::optional<std::string> thread_limit_reason(int threads);

}  // namespace precbench
