// Renders tables as text. See table.h.
#include "tools/text/table.h"

#include <algorithm>

#include "tools/text/escape.h"

namespace precbench {
namespace {

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

/// Returns the number of UTF-8 characters, assuming one column each.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

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

bool says(const std::string& cell) { return !cell.empty() && cell != "-"; }

}  // namespace

std::string take_constants(Table& table, const std::vector<std::string>& kept) {
  std::string text;
  const auto& rows = table.rows;
  for (std::size_t c = table.columns.size(); c-- > 0 && !rows.empty();) {
    const std::string title = table.columns[c].title, first = rows.front()[c];
    const bool constant =
        std::all_of(rows.begin(), rows.end(), [&](const auto& row) { return row[c] == first; });
    const bool empty = !says(first);
    if (!constant || (rows.size() < 2 && !empty) || std::count(kept.begin(), kept.end(), title)) continue;
    if (!empty) text = title + " " + first + (text.empty() ? "" : ", ") + text;
    const auto place = static_cast<std::ptrdiff_t>(c);
    table.columns.erase(table.columns.begin() + place);
    for (auto& row : table.rows) row.erase(row.begin() + place);
  }
  return text;
}

bool says_something(const Table& table, const std::string& title) {
  for (std::size_t c = 0; c < table.columns.size(); ++c)
    if (table.columns[c].title == title &&
        std::any_of(table.rows.begin(), table.rows.end(), [&](const auto& row) { return says(row[c]); }))
      return true;
  return false;
}

std::string shorten(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return text;
  std::string result;
  std::size_t count = 0;
  for (char c : text) {
    if (starts_character(c) && ++count > width - 3) break;
    result += c;
  }
  return result + "...";
}

std::string wrap(const std::string& text, std::size_t width, const std::string& indent) {
  std::string result, line;
  const auto flush = [&] {
    result += (result.empty() ? "" : "\n" + indent) + line;
    line.clear();
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::size_t room = width - (result.empty() ? 0 : indent.size());
    if (!line.empty() && width_of(line) + 1 + width_of(word) > room) flush();
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  flush();
  return result;
}

std::string render_term(const Table& table) {
  const auto shown = [](const std::string& cell) { return printable(cell); };
  const auto width = widths(table, shown);
  std::string text;
  const auto add_line = [&](auto&& cell) {
    std::string line;
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      line += (c ? "  " : "") + padded(cell(c), width[c], table.columns[c].left);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  add_line([&](std::size_t c) { return shown(table.columns[c].title); });
  add_line([&](std::size_t c) { return std::string(width[c], '-'); });
  auto group = table.group_starts.begin();
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    if (group != table.group_starts.end() && *group == r) text += '\n', ++group;
    add_line([&](std::size_t c) { return shown(table.rows[r][c]); });
  }
  return text;
}

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
