// Tables as Markdown and CSV (RFC 4180). results/text/table.h has the table itself, and shows it on a terminal.
#pragma once

#include <string>
#include <vector>

#include "results/text/table.h"

namespace precbench {

/// Returns the table as text that ends with a newline. Titles and cells are made printable
/// (results/record/printable.h) and escaped.
std::string render_markdown(const Table& table);
/// Returns a line of CSV.
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace precbench
