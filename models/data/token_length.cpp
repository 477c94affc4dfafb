// Reads the manifest of a token file. See token_length.h.
#include "models/data/token_length.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "models/data/documents.h"
#include "models/data/files.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_token_file(const std::string& path) {
  return path.ends_with(".u16") || path.ends_with(".u32") || path.ends_with(".bin");
}

/// Returns the size in bytes of a raw token file of so many tokens; null for other files, whose size does not tell.
std::optional<std::uintmax_t> raw_size(const std::string& path, std::uintmax_t tokens) {
  if (path.ends_with(".u16")) return 2 * tokens;
  if (path.ends_with(".u32")) return 4 * tokens;
  return std::nullopt;
}

/// Returns "docs.json" of "docs.u16" and of "docs.eval.u16".
fs::path manifest_of(const fs::path& file) {
  fs::path manifest = file;
  manifest.replace_extension();
  if (manifest.extension() == ".eval") manifest.replace_extension();
  manifest += ".json";
  return manifest;
}

/// Returns the file's bytes per token according to its part of the manifest; null if that part describes another file.
std::optional<double> ratio_in(const json& part, const fs::path& file) {
  if (!part.is_object() || part.value("file", json()) != file.filename().string()) return std::nullopt;
  const json bytes = part.value("bytes", json()), tokens = part.value("tokens", json());
  if (!bytes.is_number_unsigned() || !tokens.is_number_unsigned() || bytes == 0 || tokens == 0)
    return std::nullopt;
  std::error_code error;
  const auto size = raw_size(file.string(), tokens.get<std::uintmax_t>());
  if (size && fs::file_size(file, error) != *size) return std::nullopt;
  return bytes.get<double>() / tokens.get<double>();
}

}  // namespace

std::optional<double> bytes_per_token(const DataOptions& options) {
  const std::string& path = options.path;
  if (path.empty()) return std::nullopt;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    // .jsonl is text here: a folder has no documents.
    const std::vector<std::string> files = find_files(path, options.glob.empty() ? "*" : options.glob).paths;
    const bool text = !files.empty() && std::none_of(files.begin(), files.end(), is_token_file);
    return text ? std::optional(1.0) : std::nullopt;
  }
  if (!is_token_file(path) && !is_documents(path)) return 1.0;
  const fs::path manifest = manifest_of(path);
  if (!fs::is_regular_file(manifest, error)) return std::nullopt;
  try {
    const std::string text = read_regular_file(manifest.string(), kDescriptionLimits.bytes);
    const json parts = parse_untrusted<json>(text, kDescriptionLimits);
    if (!parts.is_object()) return std::nullopt;
    for (const char* name : {"training", "held_out"})
      if (const auto ratio = ratio_in(parts.value(name, json()), path)) return ratio;
  } catch (const InvalidInput&) {  // not a manifest of tools/data
  }
  return std::nullopt;
}

}  // namespace precbench
