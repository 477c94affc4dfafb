// Reading what may be anybody's: files and messages whose size, nesting and kind are checked before they are parsed.
//
// nlohmann::json parses without recursion, but copies, compares and prints recursively, and an ordered object finds a
// key by looking at all of them. So text that is too deep, or an object with too many members, is refused first.
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
  std::size_t depth = 32;       ///< arrays and objects within each other
  std::size_t members = 1'000;  ///< of one object
  /// Of all arrays and objects: a value of two letters takes some fifty bytes once it is parsed.
  std::size_t values = 10'000'000;
};

/// What a person writes: a model, a recipe.
inline constexpr JsonLimits kDescriptionLimits{std::size_t{1} << 20};

/// Why the text is not even parsed, "nested deeper than 32"; none where it is within the limits.
std::optional<std::string> beyond(std::string_view text, const JsonLimits& limits);

/// Returns the text behind a UTF-8 byte order mark, which editors on Windows write; without one, the text.
std::string_view without_byte_order_mark(std::string_view text);
/// Returns true if the text begins with the byte order mark of UTF-16, an encoding that is not read.
bool is_utf16(std::string_view text);

/// "not valid JSON in line 3, column 7". `byte`: where the parser stopped, from 1.
std::string not_valid_json(std::string_view text, std::size_t byte);

/// The parsed text. Throws InvalidInput, "not valid JSON" or what `beyond` says.
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

/// Returns the text with these constants, where they stand as values, as strings: `{"a": NaN}` becomes `{"a": "NaN"}`. So a
/// key that nobody reads may have one, and who reads a number there refuses it by its key.
std::string with_quoted_constants(std::string_view text);

/// As parse_untrusted, of what a person or a Python program wrote: a model, a recipe.
template <class Json>
Json parse_description(std::string_view text) {
  if (const auto why = beyond(text, kDescriptionLimits)) throw InvalidInput(*why);
  const std::string quoted = with_quoted_constants(without_byte_order_mark(text));
  return parse_untrusted<Json>(quoted, kDescriptionLimits);
}

/// Opens a file to read. Throws InvalidInput, "PATH: no such file", where it is none, or no regular one: a pipe or a
/// terminal would wait for a writer.
std::ifstream open_regular_file(const std::string& path);

/// All of a file. Throws InvalidInput as above, and where it has more than `most` bytes.
std::string read_regular_file(const std::string& path, std::size_t most);

}  // namespace precbench
