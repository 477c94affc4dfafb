// Small tables as text: aligned columns for terminals, Markdown, and CSV (RFC 4180).
#pragma once

#include <string>
#include <vector>

#include "results/record/printable.h"

namespace precbench {

struct TableColumn {
  std::string title;
  bool left = false;  ///< left-aligned text; numbers are right-aligned
  bool wrap = false;  ///< long text, which a page breaks into lines
};

struct Table {
  std::vector<TableColumn> columns;
  std::vector<std::vector<std::string>> rows;  ///< as many cells as columns
  std::vector<std::size_t> group_starts;       ///< rows preceded by a blank line on a terminal; never 0
};

/// Return the table as text that ends with a newline. Titles and cells are made printable
/// (results/record/printable.h), so that text from untrusted files cannot control the terminal.
std::string render_term(const Table& table);
std::string render_markdown(const Table& table);
/// Returns a line of CSV.
std::string csv_line(const std::vector<std::string>& cells);

/// Removes columns that are equal in all rows (of at least two) or empty in all, unless their title is in
/// `kept`. Returns the removed values: "batch (sequences) 1, master fp32".
std::string take_constants(Table& table, const std::vector<std::string>& kept);

/// Returns true if the column of that title has a cell that is neither empty nor "-".
bool says_something(const Table& table, const std::string& title);

/// Shortens a text to `width` characters, ending with "..." if it was longer.
std::string shorten(const std::string& text, std::size_t width);

/// Breaks `text` at spaces into lines of at most `width` characters. Lines after the first
/// start with `indent`.
std::string wrap(const std::string& text, std::size_t width, const std::string& indent);

}  // namespace precbench
