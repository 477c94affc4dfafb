// JSON limits checked in one scan, and reading of regular files.
#include "kernels/base/untrusted_input.h"
#include "kernels/base/error_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

namespace precbench {

namespace fs = std::filesystem;

std::optional<std::string> beyond(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    return fmt::format("{} bytes, and at most {} are read", text.size(), limits.bytes);
  std::vector<std::size_t> members;  // of each open object or array
  std::size_t values = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',') {
      if (++values > limits.values) return fmt::format("more than {} values", limits.values);
    } else if (c == '{' || c == '[') {
      if (++values > limits.values) return fmt::format("more than {} values", limits.values);
      if (members.size() == limits.depth) return fmt::format("nested deeper than {}", limits.depth);
      members.push_back(0);
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ':' && !members.empty() && ++members.back() > limits.members) {
      return fmt::format("an object of more than {} members", limits.members);
    }
  }
  return std::nullopt;
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

bool is_utf16(std::string_view text) { return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"); }

std::string not_valid_json(std::string_view text, std::size_t byte) {
  if (is_utf16(text)) return "not valid JSON: the file is UTF-16; save it as UTF-8";
  const std::string_view read = text.substr(0, byte > 0 ? byte - 1 : 0);
  const std::size_t newline = read.rfind('\n');
  const std::size_t column = read.size() - (newline == read.npos ? 0 : newline + 1) + 1;
  const bool comment = read.size() < text.size() && (text[read.size()] == '/' || text[read.size()] == '#');
  return fmt::format("not valid JSON in line {}, column {}{}", 1 + std::count(read.begin(), read.end(), '\n'),
                     column, comment ? ": JSON has no comments" : "");
}

std::string with_quoted_constants(std::string_view text) {
  std::string result;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto here = [&](const char* constant) { return text.substr(i).starts_with(constant); };
    const auto* constant = in_string
                               ? std::end(kPythonConstants)
                               : std::find_if(std::begin(kPythonConstants), std::end(kPythonConstants), here);
    if (constant != std::end(kPythonConstants)) {
      result += fmt::format("\"{}\"", *constant);
      i += std::string_view(*constant).size() - 1;
      continue;
    }
    result += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size())
      result += text[++i];
    else if (text[i] == '"')
      in_string = !in_string;
  }
  return result;
}

std::ifstream open_regular_file(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw InvalidInput(fmt::format("{}: no such file", path));
  if (fs::is_directory(status)) throw InvalidInput(fmt::format("{}: a folder, not a file", path));
  if (!fs::is_regular_file(status)) throw InvalidInput(fmt::format("{}: not a regular file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InvalidInput(fmt::format("cannot read {}: {}", path, error_text(errno)));
  return file;
}

std::string read_regular_file(const std::string& path, std::size_t most) {
  std::ifstream file = open_regular_file(path);
  const std::uintmax_t size = fs::file_size(path);
  if (size > most) throw InvalidInput(fmt::format("{}: {} bytes, and at most {} are read", path, size, most));
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace precbench
