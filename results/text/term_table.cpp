// Fits tables to a terminal. See table.h.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "results/record/short_text.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

using Widths = std::vector<std::size_t>;

constexpr std::size_t kGap = 2;  ///< spaces between columns

std::size_t longest_word(const std::string& text) {
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    longest = std::max(longest, width_of(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return longest;
}

/// Widths at which a column can be shown, each at most the one before.
struct ColumnWidths {
  std::size_t full = 0;     ///< titles and cells of one line
  std::size_t stacked = 0;  ///< titles of several lines
  std::size_t soft = 0;     ///< text cells of several lines, too
  std::size_t hard = 0;     ///< the same, narrow enough to be ugly
};
using WidthKind = std::size_t ColumnWidths::*;

ColumnWidths widths_of(const Table& table, std::size_t c) {
  constexpr std::size_t kSoft = 24, kSoftWord = 32, kHard = 12, kHardWord = 16;
  const TableColumn& column = table.columns[c];
  const std::string title = short_printable(column.title, kLongestCell);
  std::size_t cell = 0, word = 0;
  for (const auto& row : table.rows) {
    const std::string text = short_printable(row[c], kLongestCell);
    cell = std::max(cell, width_of(text));
    if (column.left) word = std::max(word, longest_word(text));
  }
  ColumnWidths widths;
  const std::size_t title_word = longest_word(title);
  widths.full = std::max(cell, width_of(title));
  widths.stacked = widths.soft = widths.hard = std::max(cell, title_word);
  if (!column.left || column.whole) return widths;
  widths.soft = std::max(title_word, std::min(cell, std::max(kSoft, std::min(word, kSoftWord))));
  widths.hard = std::max(title_word, std::min(cell, std::max(kHard, std::min(word, kHardWord))));
  return widths;
}

/// Columns that a table shows on a screen, and their widths.
struct Layout {
  std::vector<std::size_t> columns;
  Widths widths{};                  ///< of `columns`
  std::vector<bool> above{};        ///< columns whose values stand above each group; empty if none does
  std::vector<std::string> gone{};  ///< titles of the columns left out
};

class Fitting {
 public:
  Fitting(const Table& table, std::size_t width) : table_(table), width_(width) {
    for (std::size_t c = 0; c < table.columns.size(); ++c) widths_.push_back(widths_of(table, c));
    layout_.columns.resize(widths_.size());
    std::iota(layout_.columns.begin(), layout_.columns.end(), 0);
  }

  Layout layout() {
    if (!fits(&ColumnWidths::full)) narrow();
    return std::move(layout_);
  }

  Layout unfitted() {
    set(&ColumnWidths::full);
    return std::move(layout_);
  }

 private:
  void set(WidthKind kind) {
    layout_.widths.clear();
    for (const std::size_t c : layout_.columns) layout_.widths.push_back(widths_[c].*kind);
  }

  std::size_t total() const {
    const Widths& widths = layout_.widths;
    return std::accumulate(widths.begin(), widths.end(), std::size_t{0}) +
           kGap * (std::max<std::size_t>(widths.size(), 1) - 1);
  }

  bool fits(WidthKind kind) {
    set(kind);
    return total() <= width_;
  }

  /// Puts values above groups, stacks titles, wraps text and leaves out columns, in this order, until it fits.
  void narrow() {
    put_above();
    while (!fits(&ColumnWidths::soft) && drop(kOrdinaryRank)) {
    }
    if (!fits(&ColumnWidths::soft))
      while (!fits(&ColumnWidths::hard) && drop(kKeyRank)) {
      }
    while (total() > width_) squeeze();
    widen();
    unstack();
  }

  void put_above() {
    std::vector<bool> constant = constant_in_groups(table_);
    const auto count = std::count(constant.begin(), constant.end(), true);
    if (count == 0 || count == static_cast<std::ptrdiff_t>(constant.size())) return;
    std::erase_if(layout_.columns, [&](std::size_t c) { return constant[c]; });
    layout_.above = std::move(constant);
  }

  /// Leaves out the column of lowest rank, the rightmost of several. Returns false if none is below `rank`.
  bool drop(int rank) {
    auto lowest = layout_.columns.end();
    for (auto c = layout_.columns.begin(); c != layout_.columns.end(); ++c)
      if (table_.columns[*c].rank < rank && layout_.columns.size() > 1 &&
          (lowest == layout_.columns.end() || table_.columns[*c].rank <= table_.columns[*lowest].rank))
        lowest = c;
    if (lowest == layout_.columns.end()) return false;
    layout_.gone.insert(layout_.gone.begin(), table_.columns[*lowest].title);
    layout_.columns.erase(lowest);
    return true;
  }

  /// Narrows the widest column, or leaves out the last one if all are narrow.
  void squeeze() {
    constexpr std::size_t kLeast = 4;
    Widths& widths = layout_.widths;
    const auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest > kLeast) {
      --*widest;
      return;
    }
    layout_.gone.push_back(table_.columns[layout_.columns.back()].title);
    layout_.columns.pop_back();
    widths.pop_back();
  }

  /// Gives a title one line if the screen has space for all of it.
  void unstack() {
    for (std::size_t i = 0; i < layout_.columns.size(); ++i) {
      const std::size_t missing = widths_[layout_.columns[i]].full - layout_.widths[i];
      if (total() + missing <= width_) layout_.widths[i] += missing;
    }
  }

  /// Distributes what is left of the screen evenly over the columns whose cells need it.
  void widen() {
    for (bool grown = true; grown && total() < width_;) {
      grown = false;
      for (std::size_t i = 0; i < layout_.columns.size() && total() < width_; ++i)
        if (layout_.widths[i] < widths_[layout_.columns[i]].stacked) ++layout_.widths[i], grown = true;
    }
  }

  const Table& table_;
  std::size_t width_;
  std::vector<ColumnWidths> widths_;
  Layout layout_{};
};

std::string colored(const std::string& text, Tone tone) {
  return tone == Tone::plain ? text : fmt::format("\033[{}m{}\033[0m", tone == Tone::good ? 32 : 31, text);
}

class TermTable {
 public:
  TermTable(const Table& table, const Screen& screen) : table_(table), screen_(screen) {
    Fitting fitting(table, screen.width);
    layout_ = screen.fitted ? fitting.layout() : fitting.unfitted();
  }

  std::string text() {
    std::vector<std::string> titles, dashes;
    for (std::size_t i = 0; i < layout_.columns.size(); ++i) {
      titles.push_back(table_.columns[layout_.columns[i]].title);
      dashes.push_back(std::string(layout_.widths[i], '-'));
    }
    add(titles, true);
    add(dashes, true);
    const std::vector<std::size_t> bounds = group_bounds(table_);
    for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
      if (g > 0) text_ += '\n';
      if (!layout_.above.empty() && bounds[g] < bounds[g + 1])
        text_ += paragraph(group_title(table_, layout_.above, bounds[g]), screen_);
      for (std::size_t r = bounds[g]; r < bounds[g + 1]; ++r) {
        std::vector<std::string> cells;
        for (const std::size_t c : layout_.columns) cells.push_back(table_.rows[r][c]);
        add(cells);
      }
    }
    if (!layout_.gone.empty())
      text_ +=
          '\n' +
          indented_line(fmt::format("Too wide for this screen: {}", fmt::join(layout_.gone, ", ")), screen_);
    return std::move(text_);
  }

 private:
  /// Adds a row, of several lines if a cell is wider than its column; `titles`: without colors, and aligned
  /// at the bottom.
  void add(const std::vector<std::string>& row, bool titles = false) {
    std::vector<std::vector<std::string>> cells;
    std::size_t height = 1;
    for (std::size_t i = 0; i < row.size(); ++i) {
      cells.push_back(lines_in(wrap(short_printable(row[i], kLongestCell), layout_.widths[i], "", true)));
      height = std::max(height, cells.back().size());
    }
    for (std::size_t l = 0; l < height; ++l) {
      std::string line, blanks;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const TableColumn& column = table_.columns[layout_.columns[i]];
        const std::size_t first = titles ? height - cells[i].size() : 0;
        const std::string part = l >= first && l - first < cells[i].size() ? cells[i][l - first] : "";
        const std::string cell = padded(part, layout_.widths[i], column.left);
        // Spaces are kept back until something follows them.
        const std::size_t end = cell.find_last_not_of(' ') + 1;
        if (end > 0) {
          const bool tinted = screen_.color && column.tone && !titles;
          line += blanks + (tinted ? colored(cell.substr(0, end), column.tone(row[i])) : cell.substr(0, end));
          blanks.clear();
        }
        blanks += cell.substr(end) + std::string(kGap, ' ');
      }
      text_ += line + '\n';
    }
  }

  const Table& table_;
  const Screen& screen_;
  Layout layout_;
  std::string text_;
};

}  // namespace

std::string render_term(const Table& table, const Screen& screen) { return TermTable(table, screen).text(); }

}  // namespace precbench
