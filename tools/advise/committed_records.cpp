// Looks beside the program. See committed_records.h.
#include "tools/advise/committed_records.h"

#include <algorithm>
#include <filesystem>

#include "results/record/record_folder.h"

namespace precbench {

namespace fs = std::filesystem;

std::vector<std::string> committed_record_files(const std::string& program) {
  std::error_code error;
  const fs::path folder = fs::path(program).parent_path();
  for (const fs::path& base : {folder / "..", folder}) {
    const fs::path records = base / "share" / "precbench" / "records";
    if (!fs::is_directory(records, error)) continue;
    std::vector<std::string> files;
    for (fs::recursive_directory_iterator it(records, error), end; !error && it != end; it.increment(error))
      if (is_record_file(it->path().string()) && it->is_regular_file(error))
        files.push_back(it->path().lexically_normal().string());
    std::sort(files.begin(), files.end());
    return files;
  }
  return {};
}

std::vector<std::string> committed_record_files() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? std::vector<std::string>{} : committed_record_files(program.string());
}

}  // namespace precbench
