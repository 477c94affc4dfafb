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

/// "not valid JSON", and in which of several lines. `byte`: where the parser stopped, from 1.
std::string not_valid_json(std::string_view text, std::size_t byte);

/// The parsed text. Throws InvalidInput, "not valid JSON" or what `beyond` says.
template <class Json>
Json parse_untrusted(std::string_view text, const JsonLimits& limits) {
  if (const auto why = beyond(text, limits)) throw InvalidInput(*why);
  try {
    return Json::parse(text);
  } catch (const typename Json::parse_error& error) {
    throw InvalidInput(not_valid_json(text, error.byte));
  } catch (const typename Json::out_of_range&) {  // a number beyond every type
    throw InvalidInput("not valid JSON");
  }
}

/// Opens a file to read. Throws InvalidInput, "PATH: no such file", where it is none, or no regular one: a pipe or a
/// terminal would wait for a writer.
std::ifstream open_regular_file(const std::string& path);

/// All of a file. Throws InvalidInput as above, and where it has more than `most` bytes.
std::string read_regular_file(const std::string& path, std::size_t most);

}  // namespace precbench
