// Groups, constants and wrapping of tables. See table.h.
#include "results/text/table.h"

#include <algorithm>

namespace precbench {
namespace {

bool says(const std::string& cell) { return !cell.empty() && cell != "-"; }

}  // namespace

TableColumn name_column(std::string title) {
  return {std::move(title), true, false, kKeyRank, nullptr, true};
}
TableColumn text_column(std::string title, int rank) { return {std::move(title), true, false, rank}; }
TableColumn number_column(std::string title, int rank) { return {std::move(title), false, false, rank}; }

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

std::vector<std::size_t> group_bounds(const Table& table) {
  std::vector<std::size_t> bounds = {0};
  bounds.insert(bounds.end(), table.group_starts.begin(), table.group_starts.end());
  bounds.push_back(table.rows.size());
  return bounds;
}

std::vector<bool> constant_in_groups(const Table& table) {
  std::vector<bool> constant(table.columns.size(), false);
  const std::vector<std::size_t> bounds = group_bounds(table);
  if (table.rows.size() < 2 * (bounds.size() - 1)) return constant;
  for (std::size_t c = 0; c < constant.size(); ++c) {
    constant[c] = table.columns[c].left && !table.columns[c].wrap;
    for (std::size_t g = 0; g + 1 < bounds.size(); ++g)
      for (std::size_t r = bounds[g]; r < bounds[g + 1]; ++r)
        constant[c] = constant[c] && table.rows[r][c] == table.rows[bounds[g]][c];
  }
  return constant;
}

std::string group_title(const Table& table, const std::vector<bool>& columns, std::size_t row) {
  std::string text;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::string& value = table.rows[row][c];
    if (!columns[c] || value.empty() || value == "-") continue;
    const std::string& title = table.columns[c].title;
    const std::size_t unit = title.find(" (");
    text += (text.empty() ? "" : ", ") + title.substr(0, unit) + ' ' + value;
    if (unit == std::string::npos) continue;
    std::string word = title.substr(unit + 2, title.size() - unit - 3);
    if (value == "1" && !word.empty() && word.back() == 's') word.pop_back();
    text += ' ' + word;
  }
  return text;
}

std::string take_constants(Table& table, const std::vector<std::string>& kept) {
  std::string text;
  const auto& rows = table.rows;
  for (std::size_t c = table.columns.size(); c-- > 0 && !rows.empty();) {
    const std::string title = table.columns[c].title, first = rows.front()[c];
    const bool constant =
        std::all_of(rows.begin(), rows.end(), [&](const auto& row) { return row[c] == first; });
    const bool empty = !says(first);
    if (!constant || (rows.size() < 2 && !empty) || std::count(kept.begin(), kept.end(), title)) continue;
    table.constants.insert(table.constants.begin(), {title, empty ? "-" : first});
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

std::string wrap(const std::string& text, std::size_t width, const std::string& indent, bool everywhere) {
  std::string result, line;
  const auto flush = [&] {
    result += (result.empty() ? "" : "\n" + indent) + line;
    line.clear();
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    const auto free = [&] { return width - (result.empty() ? 0 : indent.size()); };
    if (!line.empty() && width_of(line) + 1 + width_of(word) > free()) flush();
    while (everywhere && line.empty() && width_of(word) > free()) {
      line = first_characters(word, free());
      word.erase(0, line.size());
      flush();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  flush();
  return result;
}

}  // namespace precbench
