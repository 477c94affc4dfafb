// Strict reading of JSON that people write: models, recipes, machines, published points. A mistake that a parser
// passes over is refused.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/untrusted_input.h"

namespace precbench {

/// Returns the path of the first key that an object of a JSON text has twice, "fprop.a.scale" or "points[2].id"; null
/// if there is none. A parser keeps one of the two values without a word, and not every parser the same one.
std::optional<std::string> duplicate_key(std::string_view text);

/// Returns what a download left in place of a file, and the remedy: a Git LFS pointer or a web page. Null for other
/// contents.
std::optional<std::string> stands_for_file(std::string_view text);

/// Like parse_description. Also throws InvalidInput for a key that is given twice, and for what stands_for_file()
/// finds.
template <class Json>
Json parse_strictly(std::string_view text) {
  if (const auto what = stands_for_file(text)) throw InvalidInput(*what);
  Json json = parse_description<Json>(text);
  if (const auto path = duplicate_key(with_quoted_constants(without_byte_order_mark(text))))
    throw InvalidInput(*path + ": given twice; remove one of the two");
  return json;
}

}  // namespace precbench
