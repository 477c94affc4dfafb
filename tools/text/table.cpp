// Renders tables as Markdown and CSV. See table.h.
#include "tools/text/table.h"

#include <algorithm>

#include "tools/text/escape.h"

namespace precbench {
namespace {

/// Returns the widths of the columns, with titles and cells transformed by `shown`.
std::vector<std::size_t> widths(const Table& table, std::string (*shown)(const std::string&)) {
  std::vector<std::size_t> result;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    std::size_t width = width_of(shown(table.columns[c].title));
    for (const auto& row : table.rows) width = std::max(width, width_of(shown(row[c])));
    result.push_back(width);
  }
  return result;
}

}  // namespace

std::string render_markdown(const Table& table) {
  const auto width = widths(table, markdown_cell);
  std::string text;
  const auto add_line = [&](auto&& cell) {
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      text += "| " + padded(cell(c), std::max<std::size_t>(width[c], 3), table.columns[c].left) + ' ';
    text += "|\n";
  };
  add_line([&](std::size_t c) { return markdown_cell(table.columns[c].title); });
  add_line([&](std::size_t c) {
    const std::string dashes(std::max<std::size_t>(width[c], 3) - 1, '-');
    return table.columns[c].left ? ':' + dashes : dashes + ':';
  });
  for (const auto& row : table.rows) add_line([&](std::size_t c) { return markdown_cell(row[c]); });
  return text;
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t c = 0; c < cells.size(); ++c) line.append(c ? "," : "").append(csv_cell(cells[c]));
  return line + '\n';
}

}  // namespace precbench
