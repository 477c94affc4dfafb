// Rows of words in columns, for a terminal.
#pragma once

#include <string>
#include <vector>

namespace precbench {

using TextRows = std::vector<std::vector<std::string>>;

/// One line per row, columns as wide as their widest cell and two spaces apart, no spaces at the end of a
/// line. `alignment`: 'l' or 'r' for each column; columns beyond it are to the left.
std::string aligned(const TextRows& rows, const std::string& alignment = "");

}  // namespace precbench
