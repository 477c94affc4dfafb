// Lists folders, one level down. See record_folder.h.
#include "results/record/record_folder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecordExtension = ".jsonl", kPackedExtension = ".xz";

/// Returns true for NAME.jsonl.xz beside NAME.jsonl, among names in order.
bool has_plain_copy(const std::string& path, const std::vector<std::string>& sorted) {
  return path.ends_with(kPackedExtension) &&
         std::binary_search(sorted.begin(), sorted.end(),
                            path.substr(0, path.size() - kPackedExtension.size()));
}

struct Contents {
  std::vector<std::string> records, folders;  ///< by name
};

Contents contents_of(const std::string& folder, std::error_code& error) {
  Contents found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;  // an entry that cannot be examined is none of ours
    if (is_record_file(entry->path().string()))
      found.records.push_back(entry->path().string());
    else if (entry->is_directory(ignored))
      found.folders.push_back(entry->path().string());
  }
  std::sort(found.records.begin(), found.records.end());
  std::vector<std::string> kept;
  for (const std::string& path : found.records)
    if (!has_plain_copy(path, found.records)) kept.push_back(path);
  found.records = std::move(kept);
  std::sort(found.folders.begin(), found.folders.end());
  return found;
}

}  // namespace

bool is_record_file(const std::string& path) { return without_record_extension(path) != path; }

std::string without_record_extension(const std::string& path) {
  std::string_view name = path;
  if (name.ends_with(kPackedExtension)) name.remove_suffix(kPackedExtension.size());
  return name.ends_with(kRecordExtension) ? std::string(name.substr(0, name.size() - kRecordExtension.size()))
                                          : path;
}

std::vector<std::string> record_files_in(const std::string& folder) {
  std::error_code error;
  Contents found = contents_of(folder, error);
  if (error) throw InvalidInput("cannot read " + folder + ": " + error_text(error));
  if (!found.records.empty()) return found.records;
  std::vector<std::string> files;
  for (const std::string& inner : found.folders) {
    std::error_code ignored;
    const Contents of_inner = contents_of(inner, ignored);
    files.insert(files.end(), of_inner.records.begin(), of_inner.records.end());
  }
  return files;
}

}  // namespace precbench
