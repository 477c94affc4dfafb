// Writes files and reports every error. See write_file.h.
#include "tools/text/write_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/normal_path.h"
#include "results/record/record_folder.h"

namespace precbench {
namespace {

/// Returns where to write a file that shall replace `path` at once; `path` itself if that is not possible.
std::string place_beside(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool replaceable = fs::is_regular_file(path, error) || !fs::exists(fs::symlink_status(path, error));
  const std::string folder = fs::path(path).parent_path().string();
  return replaceable && ::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0 ? path + ".next" : path;
}

[[noreturn]] void cannot_write(const std::string& path, int error) {
  throw InvalidInput(fmt::format("cannot write {}: {}", path, error_text(error)));
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

PendingFile::PendingFile(const std::string& path) : name_(path) {
  std::error_code error;
  const std::filesystem::path behind = std::filesystem::canonical(path, error);
  path_ = error ? path : behind.string();
  place_ = place_beside(path_);
  file_ = std::fopen(place_.c_str(), "wb");
  if (!file_) cannot_write(name_, errno);
}

PendingFile::~PendingFile() {
  if (file_) std::fclose(file_);
  if (!committed_ && place_ != path_) std::remove(place_.c_str());
}

void PendingFile::add(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) cannot_write(name_, errno);
}

void PendingFile::commit() {
  if (std::fflush(file_) != 0) cannot_write(name_, errno);
  if (std::fclose(std::exchange(file_, nullptr)) != 0) cannot_write(name_, errno);
  if (place_ != path_) {
    std::error_code error;
    const auto old = std::filesystem::status(path_, error);
    if (std::filesystem::exists(old)) std::filesystem::permissions(place_, old.permissions(), error);
    if (std::rename(place_.c_str(), path_.c_str()) != 0) cannot_write(name_, errno);
  }
  committed_ = true;
}

void write_file(const std::string& path, const std::string& text, bool append) {
  if (!append) {
    PendingFile file(path);
    file.add(text);
    return file.commit();
  }
  std::FILE* file = std::fopen(path.c_str(), "ab");
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
  if (error) throw InvalidInput(fmt::format("cannot make {}: {}", path, error_text(error)));
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
    const std::vector<std::string> files = record_files_in(input);
    if (std::any_of(files.begin(), files.end(), is_it)) return true;
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
