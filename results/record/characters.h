// Width of UTF-8 text on a terminal, assuming one column for each character.
#pragma once

#include <cstddef>
#include <string>

namespace precbench {

/// Returns the number of characters.
std::size_t width_of(const std::string& text);

/// Returns the first `count` characters.
std::string first_characters(const std::string& text, std::size_t count);

/// Shortens a text to `width` characters, at least 3, ending with "..." if it was longer.
std::string shorten(const std::string& text, std::size_t width);

}  // namespace precbench
