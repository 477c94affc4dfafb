// How much memory a process on this host can still take before the kernel ends one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace precbench {

/// Bytes: the least of what the host and each memory control group around this process leave free, where page
/// cache that can be dropped counts as free. Null where the system does not tell. `root` stands for /.
std::optional<std::int64_t> available_memory(const std::filesystem::path& root = "/");

}  // namespace precbench
