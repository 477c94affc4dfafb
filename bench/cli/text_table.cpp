// Column widths, alignment and wrapping. See text_table.h.
#include "bench/cli/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "results/record/short_text.h"

namespace precbench {
namespace {

/// Width of a column, in characters.
struct Width {
  std::size_t cells = 0;  ///< longest cell
  std::size_t word = 0;   ///< longest word, which is never broken
};

std::vector<std::string> words_in(const std::string& cell) {
  std::istringstream stream(cell);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<Width> widths_of(const TextRows& rows) {
  std::vector<Width> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i].cells = std::max(widths[i].cells, row[i].size());
      for (const std::string& word : words_in(row[i])) widths[i].word = std::max(widths[i].word, word.size());
    }
  }
  return widths;
}

/// Returns the rows as they may be shown: cells have names of files and of their contents.
TextRows printable_rows(TextRows rows) {
  for (auto& row : rows)
    for (std::string& cell : row) cell = short_printable(cell, kLongestCell);
  return rows;
}

}  // namespace

std::vector<std::string> wrapped_lines(const std::string& text, std::size_t width) {
  if (text.size() <= width) return {text};
  std::vector<std::string> lines;
  for (const std::string& word : words_in(text))
    if (!lines.empty() && lines.back().size() + 1 + word.size() <= width)
      lines.back() += " " + word;
    else
      lines.push_back(word);
  return lines;
}

std::string fitted(const TextRows& unsafe, std::size_t width) {
  const TextRows rows = printable_rows(unsafe);
  std::vector<Width> columns = widths_of(rows);
  const auto excess = [&] {
    std::size_t all = 2 * (columns.size() - 1);
    for (const Width& column : columns) all += column.cells;
    return all > width ? all - width : 0;
  };
  const auto slack = [](const Width& column) { return column.cells > column.word ? column.cells : 0; };
  while (excess() > 0) {
    const auto widest = std::max_element(columns.begin(), columns.end(),
                                         [&](const Width& a, const Width& b) { return slack(a) < slack(b); });
    if (slack(*widest) == 0) break;
    --widest->cells;
  }
  TextRows lines;
  for (const auto& row : rows) {
    const std::size_t first = lines.size();
    lines.emplace_back(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::vector<std::string> parts = wrapped_lines(row[i], columns[i].cells);
      while (lines.size() < first + parts.size()) lines.emplace_back(row.size());
      for (std::size_t k = 0; k < parts.size(); ++k) lines[first + k][i] = parts[k];
    }
  }
  return aligned(lines);
}

std::string aligned(const TextRows& unsafe, const std::string& alignment) {
  const TextRows rows = printable_rows(unsafe);
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool right = i < alignment.size() && alignment[i] == 'r';
      line += right ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

}  // namespace precbench
