// Rows of words in columns, for a terminal.
#pragma once

#include <string>
#include <vector>

namespace precbench {

using TextRows = std::vector<std::vector<std::string>>;

/// One line per row, columns as wide as their widest cell and two spaces apart, no spaces at the end of a
/// line. `alignment`: 'l' or 'r' for each column; columns beyond it are to the left.
std::string aligned(const TextRows& rows, const std::string& alignment = "");

/// The columns of a usual terminal.
inline constexpr std::size_t kTerminalWidth = 120;

/// The same, where a table that is wider than `width` has the words of its widest columns on several lines, as far as
/// words allow.
std::string fitted(const TextRows& rows, std::size_t width = kTerminalWidth);

}  // namespace precbench
