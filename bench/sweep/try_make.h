// Tests whether a file or folder can be created, by creating one beside it and removing it at once.
// Permissions alone are not sufficient for /proc, names that are too long, or file systems without free
// inodes.
#pragma once

#include <filesystem>
#include <system_error>

namespace precbench {

/// Returns the error with which creating `path` and its parent folders would fail; none if it would succeed
/// or if `path` is a folder that accepts new entries. Leaves nothing behind. Does not throw.
std::error_code try_make(const std::filesystem::path& path);

}  // namespace precbench
