// Creates a uniquely named folder in the last existing folder, and the missing names inside it. See
// try_make.h.
#include "bench/sweep/try_make.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <string>
#include <vector>

namespace precbench {
namespace {

namespace fs = std::filesystem;

std::error_code last_error() { return {errno, std::generic_category()}; }

/// A path, split at the end of its existing part.
struct Parted {
  fs::path there;                    ///< last existing folder; "." if nothing of a relative path exists
  std::vector<std::string> missing;  ///< remaining names
};

Parted part(const fs::path& path) {
  Parted parted;
  std::error_code ignored;
  bool there = true;
  for (const fs::path& name : path) {
    const fs::path next = parted.there / name;
    there = there && fs::exists(next, ignored);
    if (there)
      parted.there = next;
    else if (!name.empty() && name != ".")
      parted.missing.push_back(name.string());
  }
  if (parted.there.empty()) parted.there = ".";
  return parted;
}

/// Creates each name inside the previous one, below `folder`, and removes them in reverse order.
std::error_code try_names(const std::string& folder, const std::vector<std::string>& names) {
  std::vector<int> folders = {::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  std::error_code error = folders.back() < 0 ? last_error() : std::error_code();
  std::size_t made = 0;
  for (const std::string& name : names) {
    if (error || name == "..") break;  // names after ".." are not below this folder
    if (::mkdirat(folders.back(), name.c_str(), 0700) != 0) {
      error = last_error();
      break;
    }
    ++made;
    folders.push_back(::openat(folders.back(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folders.back() < 0) error = last_error();
  }
  for (; made > 0; --made) ::unlinkat(folders[made - 1], names[made - 1].c_str(), AT_REMOVEDIR);
  for (const int one : folders)
    if (one >= 0) ::close(one);
  return error;
}

}  // namespace

std::error_code try_make(const fs::path& path) {
  if (path.native().size() >= PATH_MAX) return std::make_error_code(std::errc::filename_too_long);
  const Parted parted = part(path);
  std::error_code ignored;
  if (!fs::is_directory(parted.there, ignored)) return std::make_error_code(std::errc::not_a_directory);
  if (!parted.missing.empty() && fs::is_symlink(parted.there / parted.missing.front(), ignored))
    return std::make_error_code(std::errc::file_exists);  // a dangling link
  std::string folder = (parted.there / ".precbench-try-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return last_error();
  const std::error_code error = try_names(folder, parted.missing);
  ::rmdir(folder.c_str());
  return error;
}

}  // namespace precbench
