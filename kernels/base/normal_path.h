// One name for all names of a file.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace precbench {

/// The same for all names of a file, also of one that is not there yet: absolute, without links that can be followed.
inline std::filesystem::path normal_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(whole, error);
  return error ? whole : resolved;
}

}  // namespace precbench
