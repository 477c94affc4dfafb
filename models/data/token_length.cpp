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

/// Returns the bytes that a token takes in a file of tokens; 0 where it varies, in documents, and where no manifest is
/// written, in .bin files; null for text.
std::optional<std::uintmax_t> width_of(const std::string& path) {
  if (path.ends_with(".u16")) return 2;
  if (path.ends_with(".u32")) return 4;
  return is_documents(path) || path.ends_with(".bin") ? std::optional(std::uintmax_t{0}) : std::nullopt;
}

/// Returns "docs.json" of "docs.u16" and of "docs.eval.u16".
fs::path manifest_of(const fs::path& file) {
  fs::path manifest = file;
  manifest.replace_extension();
  if (manifest.extension() == ".eval") manifest.replace_extension();
  manifest += ".json";
  return manifest;
}

/// Returns the file's bytes per token by its part of the manifest; null if that part describes another file.
std::optional<double> ratio_in(const json& part, const fs::path& file, std::uintmax_t width) {
  if (!part.is_object() || part.value("file", json()) != file.filename().string()) return std::nullopt;
  const json bytes = part.value("bytes", json()), tokens = part.value("tokens", json());
  if (!bytes.is_number_unsigned() || !tokens.is_number_unsigned()) return std::nullopt;
  const auto number = tokens.get<std::uintmax_t>();
  std::error_code error;
  if (number == 0 || bytes.get<std::uintmax_t>() == 0) return std::nullopt;
  if (width > 0 && fs::file_size(file, error) != number * width) return std::nullopt;
  return bytes.get<double>() / static_cast<double>(number);
}

}  // namespace

std::optional<double> bytes_per_token(const DataOptions& options) {
  const std::string& path = options.path;
  if (path.empty()) return std::nullopt;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const std::vector<std::string> files = find_files(path, options.glob.empty() ? "*" : options.glob).paths;
    const auto is_text = [](const std::string& file) { return is_documents(file) || !width_of(file); };
    return !files.empty() && std::all_of(files.begin(), files.end(), is_text) ? std::optional(1.0) : std::nullopt;
  }
  const auto width = width_of(path);
  if (!width) return 1.0;
  const fs::path manifest = manifest_of(path);
  if (!fs::is_regular_file(manifest, error)) return std::nullopt;
  try {
    const json parts = parse_untrusted<json>(read_regular_file(manifest.string(), kDescriptionLimits.bytes), kDescriptionLimits);
    if (!parts.is_object()) return std::nullopt;
    for (const char* name : {"training", "held_out"})
      if (const auto ratio = ratio_in(parts.value(name, json()), path, *width)) return ratio;
  } catch (const InvalidInput&) {  // no manifest of ours
  }
  return std::nullopt;
}

}  // namespace precbench
