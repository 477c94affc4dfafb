// Keys of sweep files. See config_file.h.
#include "bench/cli/config_file.h"

#include <fmt/format.h>

#include "bench/cli/toml.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_count.h"
#include "kernels/base/standard_input.h"
#include "kernels/base/untrusted_input.h"

namespace precbench {
namespace {

constexpr std::size_t kLongestFile = std::size_t{1} << 20;

bool is_option(const std::string& key) { return key == "out" || key == "timeout" || key == "interleave"; }

std::string known_key(const std::string& key) {
  if (is_option(key)) return key;
  if (const Field* field = find_field(key)) return field->name;
  if (const char* replacement = removed_field(key))
    throw InvalidInput(fmt::format("unknown key {}; {}", key, replacement));
  std::vector<std::string> valid = {"out", "timeout", "interleave"};
  for (const Field& field : case_fields()) {
    valid.push_back(field.name);
    if (*field.alias) valid.push_back(field.alias);
  }
  const std::string near = nearest(key, valid);
  throw InvalidInput(
      fmt::format("unknown key {}{}", key,
                  near.empty() ? "; see precbench sweep --help" : "; did you mean " + near + "?"));
}

void set_option(SweepFile& file, const std::string& key, const std::string& word) {
  if (key == "out") {
    file.out = word;
  } else if (key == "timeout") {
    file.timeout_s = parse_timeout(word);
  } else {
    if (word != "true" && word != "false")
      throw InvalidInput(fmt::format("interleave: \"{}\" is neither true nor false", word));
    file.interleave = word == "true";
  }
}

}  // namespace

std::string config_text(const std::string& path) {
  try {
    const std::string text = read_input(path, kLongestFile, "--config");
    if (is_utf16(text)) throw InvalidInput(fmt::format("{}: UTF-16; save it as UTF-8", name_of_input(path)));
    if (text.find('\0') != text.npos)
      throw InvalidInput(fmt::format("{}: a binary file, not TOML", name_of_input(path)));
    return std::string(without_byte_order_mark(text));
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("--config: {}", error.what()));
  }
}

SweepFile read_sweep_file(const std::string& path) {
  SweepFile file;
  Axes common;
  TomlHandler handler;
  handler.section = [&](const std::string& section) { file.grids.push_back({section, {}}); };
  handler.known = [](const std::string&, const std::string& key) { return known_key(key); };
  handler.key = [&](const std::string& section, const std::string& key, const std::vector<std::string>& words,
                    const std::string&) {
    const Field* field = is_option(key) ? nullptr : find_field(key);
    if (words.size() != 1 && (!field || !field->axis)) throw InvalidInput(key + " takes one value");
    if (field) {
      check_words(*field, words);
      (section.empty() ? common : file.grids.back().axes)[key] = words;
    } else if (!section.empty()) {
      throw InvalidInput(key + " belongs before the first section");
    } else {
      set_option(file, key, words.front());
    }
  };
  read_toml(name_of_input(path), config_text(path), handler);
  if (file.grids.empty()) file.grids = {{"", {}}};
  for (SweepFile::Grid& grid : file.grids)
    grid.axes.insert(common.begin(), common.end());  // does not overwrite the section's keys
  return file;
}

double parse_timeout(const std::string& text) {
  const auto seconds = parse_seconds(text);
  if (!seconds)
    throw InvalidInput(
        fmt::format("--timeout: \"{}\" is not a number of seconds, such as 90, 10s, 30m or 2h", text));
  if (*seconds < 0) throw InvalidInput("--timeout: must not be negative");
  return *seconds;
}

}  // namespace precbench
