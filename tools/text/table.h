// Small tables as text: aligned columns for a terminal, Markdown, and CSV (RFC 4180).
#pragma once

#include <string>
#include <vector>

#include "results/printable.h"

namespace precbench {

struct TableColumn {
  std::string title;
  bool left = false;  ///< texts to the left, numbers to the right
  bool wrap = false;  ///< long texts, which a page breaks into lines
};

struct Table {
  std::vector<TableColumn> columns;
  std::vector<std::vector<std::string>> rows;  ///< as many cells as columns
  std::vector<std::size_t> group_starts;       ///< rows before which a terminal shows a blank line; never 0
};

/// Every function ends its last line with a newline and shows of titles and cells what is printable
/// (results/printable.h), so that no text of a foreign file can drive the reader's terminal.
std::string render_term(const Table& table);
std::string render_markdown(const Table& table);
/// A line of CSV.
std::string csv_line(const std::vector<std::string>& cells);

/// Takes out the columns that say the same in all rows (of two at least) or nothing in any, but for those of
/// a title in `kept`. Returns what they said: "batch (sequences) 1, master fp32".
std::string take_constants(Table& table, const std::vector<std::string>& kept);

/// Whether a column of that title has a cell that is neither empty nor "-".
bool says_something(const Table& table, const std::string& title);

/// At most `width` characters, "..." in place of the rest.
std::string shorten(const std::string& text, std::size_t width);

/// `text` in lines of at most `width` characters where its spaces allow it, each after the first behind
/// `indent`.
std::string wrap(const std::string& text, std::size_t width, const std::string& indent);

}  // namespace precbench
