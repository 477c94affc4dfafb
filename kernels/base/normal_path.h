// One path for all paths to a name.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace precbench {

/// The same for all paths to a name, also of a file that is not there yet: absolute, without links that can be
/// followed. Hard links are names of their own.
inline std::filesystem::path normal_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(whole, error);
  return error ? whole : resolved;
}

}  // namespace precbench
