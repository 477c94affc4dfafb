// Checks, locks and appends. See sweep_folder.h.
#include "bench/sweep/sweep_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <system_error>

#include "bench/sweep/try_make.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "results/record/record_file.h"
#include "results/record/shell.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

void append(const std::string& path, const Record& record) {
  try {
    append_record(path, record);
  } catch (const InvalidInput& error) {
    throw CannotKeepRow(error.what());
  }
}

std::string records_in(const fs::path& folder) { return (folder / "records.jsonl").string(); }
std::string first_runs_in(const fs::path& folder) { return records_in(folder) + ".first-runs"; }

[[noreturn]] void cannot(const char* what, const std::string& path, const std::string& why) {
  throw InvalidInput(fmt::format("--out: cannot {} {}: {}", what, path, why));
}

void check_files_in(const fs::path& folder) {
  std::error_code error;
  if (const std::string packed = records_in(folder) + ".xz";
      fs::exists(packed, error) && !fs::exists(records_in(folder), error))
    throw InvalidInput(
        fmt::format("--out: {}: nothing can be added to packed records; unpack them first: xz -d {}", packed,
                    shell_path(packed)));
  for (const std::string& file : {records_in(folder), first_runs_in(folder)}) {
    if (!fs::exists(file, error)) continue;
    try {
      open_regular_file(file);
    } catch (const InvalidInput& refusal) {
      throw InvalidInput(fmt::format("--out: {}", refusal.what()));
    }
    if (access(file.c_str(), W_OK) != 0) cannot("write", file, error_text(errno));
  }
}

}  // namespace

void check_out(const std::string& path) {
  // Checks the longest of the names that will be created there.
  std::error_code error = try_make(path);
  if (!error && first_runs_in(path).size() >= PATH_MAX)
    error = std::make_error_code(std::errc::filename_too_long);
  std::error_code ignored;
  if (error) cannot(fs::is_directory(path, ignored) ? "write to" : "make", path, error_text(error));
  check_files_in(path);
  const std::string lock = lock_in(path);
  if (fs::exists(lock, ignored) && access(lock.c_str(), R_OK | W_OK) != 0)
    cannot("write to", path, error_text(errno));
}

SweepFolder::SweepFolder(const std::string& path) : path_(path) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) cannot("make", path, error_text(error));
  check_files_in(path_);
  lock_.emplace(path);
}

std::string SweepFolder::records() const { return records_in(path_); }
std::string SweepFolder::first_runs() const { return first_runs_in(path_); }

SweepFolder::Identity SweepFolder::identity() const {
  struct stat status = {};
  if (stat(records().c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_size};
}

bool SweepFolder::rows_were_taken() {
  taken_ = taken_ || identity() != last_;
  return taken_;
}

void SweepFolder::append_row(const Record& record) {
  rows_were_taken();
  try {
    append(records(), record);
  } catch (...) {
    last_ = identity();  // the file's current state is our own doing
    throw;
  }
  last_ = identity();
}

void SweepFolder::append_first_run(const Record& record) const { append(first_runs(), record); }

}  // namespace precbench
