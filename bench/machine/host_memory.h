// How much memory a process on this host can still take before the kernel ends one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace precbench {

/// Bytes: the least of what the host and each memory control group around this process leave free, where page
/// cache that can be dropped counts as free. Null where the system does not tell. `root` stands for /.
std::optional<std::int64_t> available_memory(const std::filesystem::path& root = "/");

/// Why no case can run under this process's limit of address space (ulimit -v) with so many threads; none where one
/// can, or there is no limit. OpenBLAS asks for its buffers until it gets them, so a process that has too little hangs
/// in its threads, and in any fork or exit that waits for these.
std::optional<std::string> why_too_little_address_space(int threads);

}  // namespace precbench
