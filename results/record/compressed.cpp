// Looks at the first bytes of files. See compressed.h.
#include "results/record/compressed.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "kernels/base/errors.h"
#include "results/record/line_reader.h"
#include "results/record/record_folder.h"
#include "results/record/shell.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<std::string_view, std::string_view> kUnpackers[] = {
    {"\x1F\x8B", "gzip"}, {"\x28\xB5\x2F\xFD", "zstd"}, {"BZh", "bzip2"}};

/// Returns the unpacker of a regular file; "" for others.
std::string_view unpacker_of_file(const std::string& path) {
  std::error_code error;
  if (named_descriptor(path) || !fs::is_regular_file(path, error)) return "";
  std::ifstream file(path, std::ios::binary);
  std::string begin(8, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(file.gcount()));
  return unpacker_of(begin);
}

/// Returns the first compressed record file of a folder or of the folders in it; null without one.
std::optional<std::string> compressed_file_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error),
       end;
       !error && entry != end; entry.increment(error)) {
    if (entry.depth() > 0) entry.disable_recursion_pending();
    const std::string path = entry->path().string();
    if (path.find(".jsonl.") != std::string::npos && !unpacker_of_file(path).empty()) found.push_back(path);
  }
  return found.empty() ? std::nullopt : std::optional(*std::min_element(found.begin(), found.end()));
}

}  // namespace

std::string_view unpacker_of(std::string_view data) {
  for (const auto& [begin, name] : kUnpackers)
    if (data.starts_with(begin)) return name;
  return "";
}

void refuse_compressed(const std::vector<std::string>& paths, const std::string& reader) {
  for (const std::string& path : paths) {
    std::string file = path, which = path;
    std::error_code error;
    if (!named_descriptor(path) && fs::is_directory(path, error)) {
      if (!record_files_in(path).empty()) continue;
      const auto compressed = compressed_file_in(path);
      if (!compressed) continue;
      file = *compressed;
      which = fmt::format("{}: no record file (*.jsonl, *.jsonl.xz); {}", path, file);
    }
    if (const std::string_view unpacker = unpacker_of_file(file); !unpacker.empty())
      throw InvalidInput(fmt::format("{}: compressed with {}; unpack it on the way: {} -dc {} | {}", which,
                                     unpacker, unpacker, shell_path(file), reader));
  }
}

}  // namespace precbench
