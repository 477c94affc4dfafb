// Whether a file or folder could be made, found out by making one beside it that is removed at once: permissions alone
// say nothing of /proc, a name that is too long, or a file system that takes no new entries.
#pragma once

#include <filesystem>
#include <system_error>

namespace precbench {

/// Returns the error with which making `path` and the folders above it would fail; none where it would succeed or the
/// path is there and is a folder that takes new entries. Leaves nothing behind. Throws nothing.
std::error_code try_make(const std::filesystem::path& path);

}  // namespace precbench
