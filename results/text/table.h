// Tables for a terminal: aligned columns that fit its width. tools/text/table.h has Markdown and CSV.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "results/record/characters.h"
#include "results/record/printable.h"
#include "results/text/screen.h"

namespace precbench {

/// Importance of a column. Where a terminal is too narrow, the columns of lowest rank fall first, among equals
/// the rightmost; key columns fall last.
inline constexpr int kDetailRank = 0, kOrdinaryRank = 50, kKeyRank = 100;

enum class Tone : std::uint8_t { plain, good, bad };

struct TableColumn {
  std::string title;
  bool left = false;  ///< left-aligned text; numbers are right-aligned
  bool wrap = false;  ///< long text, which a page breaks into lines
  int rank = kOrdinaryRank;
  Tone (*tone)(const std::string& cell) = nullptr;  ///< color of a cell on a terminal; null: plain
  bool whole = false;                               ///< names, which a narrow terminal does not break
};

/// Returns a column of names, which stay whole; of text, which a narrow terminal wraps; of numbers.
TableColumn name_column(std::string title);
TableColumn text_column(std::string title, int rank = kOrdinaryRank);
TableColumn number_column(std::string title, int rank = kOrdinaryRank);

struct Table {
  std::vector<TableColumn> columns;
  std::vector<std::vector<std::string>> rows;  ///< as many cells as columns
  std::vector<std::size_t> group_starts;       ///< rows preceded by a blank line on a terminal; never 0
  /// Titles and values of the columns that take_constants() removed, leftmost first; "-" for an empty one.
  std::vector<std::pair<std::string, std::string>> constants{};
};

/// Returns the table as text that ends with a newline. Titles and cells are made printable
/// (results/record/printable.h), so that text from untrusted files cannot control the terminal. On a fitted
/// screen, titles are stacked, cells wrapped, and columns left out by rank, which a last line names.
std::string render_term(const Table& table, const Screen& screen = {});

/// Removes columns that are equal in all rows (of at least two) or empty in all, unless their title is in
/// `kept`. Returns the removed values: "batch (sequences) 1, master fp32".
std::string take_constants(Table& table, const std::vector<std::string>& kept);

/// Returns true if the column of that title has a cell that is neither empty nor "-".
bool says_something(const Table& table, const std::string& title);

/// Returns the text columns that are constant within each group of rows, so that their values can stand once
/// above the group. A table without `group_starts` is one group. Returns none if most groups have one row.
std::vector<bool> constant_in_groups(const Table& table);

/// Returns the values of some columns in a row, "model llama3.1-8b, seq 2048 tokens" from titles such as
/// "seq (tokens)".
std::string group_title(const Table& table, const std::vector<bool>& columns, std::size_t row);

/// Returns the first row of each group, followed by the number of rows.
std::vector<std::size_t> group_bounds(const Table& table);

/// Appends spaces, or puts them in front of text that is not `left`-aligned, up to `width` characters.
std::string padded(const std::string& text, std::size_t width, bool left);

/// Breaks `text` at spaces into lines of at most `width` characters. Lines after the first
/// start with `indent`. A longer word keeps a line of its own, unless `everywhere` allows to break it.
std::string wrap(const std::string& text, std::size_t width, const std::string& indent,
                 bool everywhere = false);

}  // namespace precbench
