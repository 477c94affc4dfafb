// Adds up the tensors of states and the blocks of files. See disk_space.h.
#include "bench/sweep/disk_space.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "bench/case/plan.h"
#include "bench/step/checkpoint.h"
#include "bench/step/checkpoint_files.h"
#include "bench/sweep/progress.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Returns the last existing folder of a path.
fs::path existing_part(const std::string& path) {
  std::error_code error;
  fs::path part = fs::absolute(path, error);
  while (!fs::exists(part, error) && part.has_relative_path()) part = part.parent_path();
  return part;
}

/// Returns the bytes that a file, or the files below a folder, take on the disk: less than their sizes if a write was
/// cut short. Does not follow links.
std::int64_t bytes_on_disk(const fs::path& path) {
  constexpr std::int64_t kBlock = 512;  // of st_blocks, whatever the file system's own blocks are
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) return 0;
  if (!S_ISDIR(status.st_mode)) return std::int64_t{status.st_blocks} * kBlock;
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    bytes += bytes_on_disk(entry->path());
  return bytes;
}

/// Returns an id of the path's file system.
dev_t file_system_of(const std::string& path) {
  struct stat status = {};
  return stat(existing_part(path).c_str(), &status) == 0 ? status.st_dev : 0;
}

}  // namespace

std::optional<std::int64_t> free_bytes_at(const std::string& path) {
  struct statvfs status = {};
  // Some network file systems report no blocks at all.
  if (statvfs(existing_part(path).c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  return static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
}

std::int64_t checkpoint_bytes(const Plan& plan) {
  if (unsupported_reason(plan)) return 0;
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : state_of(plan)) {
    std::int64_t size = 1;
    for (const std::int64_t n : tensor.shape) size *= n;
    bytes += bytes_of(tensor.values.dtype, size);
  }
  return bytes + bytes / 100;
}

std::int64_t missing_checkpoint_bytes(const Plan& plan, Earlier earlier) {
  if (!writes_checkpoints(plan.fields)) return 0;
  const std::vector<std::int64_t> steps = checkpoint_steps(plan.fields);
  const std::int64_t each = checkpoint_bytes(plan);
  auto count = static_cast<std::int64_t>(steps.size());
  // The older one is kept until the newer one is complete.
  if (plan.checkpoint_keep == CheckpointKeep::last) count = std::min<std::int64_t>(count, 2);
  std::int64_t there = 0;
  if (earlier == Earlier::used) {
    const std::string folder = checkpoint_folder(plan);
    const std::map<std::int64_t, std::string> finished = checkpoints_in(folder);
    if (plan.checkpoint_keep == CheckpointKeep::all)
      count -= std::count_if(steps.begin(), steps.end(),
                             [&](std::int64_t step) { return finished.contains(step); });
    // The rest is half-written and removed, or with `last` replaced.
    there = bytes_on_disk(folder);
    if (plan.checkpoint_keep == CheckpointKeep::all)
      for (const auto& [step, path] : finished) there -= bytes_on_disk(path);
  }
  return std::max<std::int64_t>(0, count * each - there);
}

std::optional<std::string> space_shortage(const std::vector<Plan>& cases, Earlier earlier,
                                          const FreeBytes& free) {
  struct Needed {
    std::string folder;
    std::int64_t bytes = 0;
    std::size_t cases = 0;
  };
  std::map<dev_t, Needed> by_file_system;
  for (const Plan& plan : cases) {
    const std::int64_t bytes = missing_checkpoint_bytes(plan, earlier);
    if (bytes == 0) continue;
    Needed& needed = by_file_system[file_system_of(plan.fields.checkpoint_dir)];
    if (needed.cases == 0) needed.folder = plan.fields.checkpoint_dir;
    needed.bytes += bytes;
    ++needed.cases;
  }
  for (const auto& [device, needed] : by_file_system)
    if (const auto there = free(needed.folder); there && *there < needed.bytes)
      return fmt::format(
          "--checkpoint-dir: the checkpoints of {} need {}, and {} has {} free; make room, choose another folder, or "
          "keep fewer checkpoints (--checkpoint-every, --checkpoint-keep last)",
          count_cases(needed.cases), describe_bytes(needed.bytes), needed.folder, describe_bytes(*there));
  return std::nullopt;
}

std::string describe_bytes(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.3g} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.3g} MB", value / 1e6);
  return fmt::format("{:.3g} kB", value / 1e3);
}

}  // namespace precbench
