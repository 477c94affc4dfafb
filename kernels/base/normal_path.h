// Normalization of paths.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace precbench {

/// Returns the same path for all paths to a file, even if it does not exist yet: absolute, with symbolic
/// links resolved where possible. Hard links count as different files.
inline std::filesystem::path normal_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(whole, error);
  return error ? whole : resolved;
}

}  // namespace precbench
