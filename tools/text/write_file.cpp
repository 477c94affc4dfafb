// Writes files and reports every error. See write_file.h.
#include "tools/text/write_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>

#include "kernels/base/errors.h"
#include "kernels/base/normal_path.h"

namespace precbench {
namespace {

[[noreturn]] void cannot_write(const std::string& path, int error) {
  throw InvalidInput(fmt::format("cannot write {}: {}", path, std::strerror(error)));
}

}  // namespace

void check_writable(const std::string& path) {
  std::error_code error;
  const bool existed = std::filesystem::exists(path, error);
  if (existed && std::filesystem::is_fifo(path, error))
    return;  // opening a FIFO would block
             // until it has a reader
  std::FILE* file = std::fopen(path.c_str(), "ab");
  if (!file) cannot_write(path, errno);
  std::fclose(file);
  if (!existed) std::filesystem::remove(path, error);
}

void write_file(const std::string& path, const std::string& text, bool append) {
  std::FILE* file = std::fopen(path.c_str(), append ? "ab" : "wb");
  if (!file) cannot_write(path, errno);
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int error = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) cannot_write(path, written ? errno : error);
}

void make_folder(const std::string& path) {
  std::error_code error;
  if (!path.empty()) std::filesystem::create_directories(path, error);
  if (error) throw InvalidInput(fmt::format("cannot make {}: {}", path, error.message()));
}

void write_standard_output(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    cannot_write("standard output", errno);
}

bool is_among(const std::vector<std::string>& inputs, const std::string& path) {
  namespace fs = std::filesystem;
  const auto is_it = [&](const fs::path& read) {
    std::error_code error;  // missing files are not equivalent
    return fs::equivalent(read, path, error) || normal_path(read.string()) == normal_path(path);
  };
  for (const std::string& input : inputs) {
    if (is_it(input)) return true;
    std::error_code error;
    if (!fs::is_directory(input, error)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(input, error))
      if (entry.path().extension() == ".jsonl" && is_it(entry.path())) return true;
  }
  return false;
}

void check_outputs(const std::vector<NamedOutput>& outputs, const std::vector<std::string>& inputs) {
  std::map<std::filesystem::path, std::string> written;
  for (const auto& [flag, path] : outputs) {
    std::error_code error;
    const bool keeps = std::filesystem::is_regular_file(path, error) || !std::filesystem::exists(path, error);
    if (path.empty() || !keeps) continue;  // devices lose no data
    const auto [other, fresh] = written.emplace(normal_path(path), flag);
    if (!fresh) throw InvalidInput(fmt::format("{} and {} both write {}", other->second, flag, path));
    if (is_among(inputs, path))
      throw InvalidInput(fmt::format("{}: {} is read, and would be lost; name another file", flag, path));
  }
}

}  // namespace precbench
