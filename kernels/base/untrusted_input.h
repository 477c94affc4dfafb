// Reading of untrusted files and messages: size, nesting and file type are checked before parsing.
//
// nlohmann::json parses without recursion, but copies, compares and prints recursively, and an ordered object
// looks up keys by linear search. So text that is too deep, or an object with too many members, is rejected
// first.
#pragma once

#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/errors.h"

namespace precbench {

struct JsonLimits {
  std::size_t bytes;
  std::size_t depth = 32;       ///< nested arrays and objects
  std::size_t members = 1'000;  ///< per object
  /// Values of all arrays and objects: a two-character value takes about fifty bytes once parsed.
  std::size_t values = 10'000'000;
};

/// Limits of files written by people: models, recipes.
inline constexpr JsonLimits kDescriptionLimits{std::size_t{1} << 20};

/// Returns why the text is rejected before parsing, "nested deeper than 32"; none if it is within the limits.
std::optional<std::string> beyond(std::string_view text, const JsonLimits& limits);

/// Returns the text without a leading UTF-8 byte order mark, which editors on Windows write.
std::string_view without_byte_order_mark(std::string_view text);
/// Returns true if the text begins with a UTF-16 byte order mark; UTF-16 is not supported.
bool is_utf16(std::string_view text);

/// Returns "not valid JSON in line 3, column 7". `byte`: the parser's position, from 1.
std::string not_valid_json(std::string_view text, std::size_t byte);

/// Returns the parsed text. Throws InvalidInput: "not valid JSON" or the reason from `beyond`.
template <class Json>
Json parse_untrusted(std::string_view text, const JsonLimits& limits) {
  if (const auto why = beyond(text, limits)) throw InvalidInput(*why);
  try {
    return Json::parse(text);
  } catch (const typename Json::parse_error& error) {
    throw InvalidInput(not_valid_json(text, error.byte));
  } catch (const typename Json::out_of_range&) {
    throw InvalidInput("not valid JSON: a number is beyond every type");
  }
}

/// Constants that Python's json.dump writes for numbers that JSON cannot represent.
inline constexpr const char* kPythonConstants[] = {"-Infinity", "Infinity", "NaN"};

/// Returns the text with these constants, in value positions, quoted: `{"a": NaN}` becomes `{"a": "NaN"}`.
/// Keys that nobody reads may then have one, and a reader that expects a number rejects it by key.
std::string with_quoted_constants(std::string_view text);

/// Like parse_untrusted, for files written by people or Python programs: models, recipes.
template <class Json>
Json parse_description(std::string_view text) {
  if (const auto why = beyond(text, kDescriptionLimits)) throw InvalidInput(*why);
  const std::string quoted = with_quoted_constants(without_byte_order_mark(text));
  return parse_untrusted<Json>(quoted, kDescriptionLimits);
}

/// Opens a file for reading. Throws InvalidInput, "PATH: no such file", if it does not exist or is not a
/// regular file: a pipe or a terminal would block.
std::ifstream open_regular_file(const std::string& path);

/// Returns the contents of a file. Throws InvalidInput as above, and if it has more than `most` bytes.
std::string read_regular_file(const std::string& path, std::size_t most);

}  // namespace precbench
