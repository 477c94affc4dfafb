// Limits the length of untrusted text that is shown to a person.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace precbench {

/// Number of characters of a table's cell, and of a line of text, that are shown. Longer ones, whose names come from
/// damaged or malicious files, would fill screens.
inline constexpr std::size_t kLongestCell = 500, kLongestLine = 4000;

/// Returns the text as printable() (printable.h) with at most `most` characters, at least 3: a longer one ends with
/// "...".
std::string short_printable(std::string_view text, std::size_t most);

}  // namespace precbench
