// Tests whether a file or folder can be created, by creating one beside it and removing it at once. Permissions alone do not
// tell for /proc, names that are too long, or file systems without free inodes.
#pragma once

#include <filesystem>
#include <system_error>

namespace precbench {

/// Returns the error with which making `path` and the folders above it would fail; none where it would succeed or the
/// path is there and is a folder that takes new entries. Leaves nothing behind. Throws nothing.
std::error_code try_make(const std::filesystem::path& path);

}  // namespace precbench
