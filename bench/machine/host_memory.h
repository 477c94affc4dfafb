// How much memory a process on this host can still take before the kernel ends one, and for how many threads there is some.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace precbench {

/// Bytes: the least of what the host and each memory control group around this process leave free, where page
/// cache that can be dropped counts as free. Null where the system does not tell. `root` stands for /.
std::optional<std::int64_t> available_memory(const std::filesystem::path& root = "/");

/// Why no case can run with so many threads: more than any machine has, for which OpenMP's runtime overflows the stack, or
/// more than fit into this process's limit of address space (ulimit -v). None where a case can run.
std::optional<std::string> why_too_many_threads(int threads);

}  // namespace precbench
