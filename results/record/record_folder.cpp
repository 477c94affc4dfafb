// Lists folders, one level down. See record_folder.h.
#include "results/record/record_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

struct Contents {
  std::vector<std::string> records, folders;  ///< by name
};

Contents contents_of(const std::string& folder, std::error_code& error) {
  Contents found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;  // an entry that cannot be examined is none of ours
    if (entry->path().extension() == ".jsonl")
      found.records.push_back(entry->path().string());
    else if (entry->is_directory(ignored))
      found.folders.push_back(entry->path().string());
  }
  std::sort(found.records.begin(), found.records.end());
  std::sort(found.folders.begin(), found.folders.end());
  return found;
}

}  // namespace

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
