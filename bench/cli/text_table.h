// Tables and wrapped text for a terminal.
#pragma once

#include <string>
#include <vector>

namespace precbench {

using TextRows = std::vector<std::vector<std::string>>;

/// Returns one line per row, with printable text (printable.h). Columns are as wide as their widest cell and two spaces apart, without trailing
/// spaces. `alignment`: 'l' or 'r' for each column; further columns are left-aligned.
std::string aligned(const TextRows& rows, const std::string& alignment = "");

/// Characters per line of a terminal, as assumed for tables and help.
inline constexpr std::size_t kTerminalWidth = 120;

/// Returns the table like `aligned`, but wraps the widest columns between words until a line has at most
/// `width` characters or no column can be wrapped further.
std::string fitted(const TextRows& rows, std::size_t width = kTerminalWidth);

/// Breaks text between words into lines of at most `width` characters. A longer word has a line of its own.
std::vector<std::string> wrapped_lines(const std::string& text, std::size_t width);

}  // namespace precbench
