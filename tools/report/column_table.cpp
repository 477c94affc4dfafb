// Selects, pivots and joins the columns of a table. See column_table.h.
#include "tools/report/column_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/base/errors.h"
#include "results/record/printable.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

using Places = std::vector<std::size_t>;  // of columns
using CellTexts = std::vector<std::string>;

/// Returns the table with the columns that were constant, first, and without groups.
Table whole_of(const Table& table) {
  Table whole;
  for (const auto& [title, value] : table.constants) whole.columns.push_back({title, true});
  whole.columns.insert(whole.columns.end(), table.columns.begin(), table.columns.end());
  for (const CellTexts& row : table.rows) {
    CellTexts& cells = whole.rows.emplace_back();
    for (const auto& [title, value] : table.constants) cells.push_back(value);
    for (const std::string& cell : row) cells.push_back(cell.empty() ? "-" : cell);
  }
  return whole;
}

/// Returns how well a name fits a title: 2 for all of it up to a comma or bracket, 1 for its first words, else 0.
int fit(const std::string& title, const std::string& name) {
  if (title.compare(0, name.size(), name) != 0) return 0;
  const std::string rest = title.substr(name.size());
  if (rest.empty() || rest.rfind(" (", 0) == 0 || rest.rfind(" [", 0) == 0 || rest[0] == ',') return 2;
  return rest[0] == ' ' ? 1 : 0;
}

std::size_t place_of(const Table& table, const std::string& name, const char* flag) {
  for (const int wanted : {2, 1})
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      if (fit(table.columns[c].title, name) == wanted) return c;
  Distinct titles;
  for (const TableColumn& column : table.columns) titles.add(column.title);
  throw InvalidInput(fmt::format("{}: no column \"{}\"; the table has {}", flag, printable(name),
                                 printable(titles.joined())));
}

Places places_of(const Table& table, const std::vector<std::string>& names, const char* flag) {
  Places places;
  for (const std::string& name : names) places.push_back(place_of(table, name, flag));
  return places;
}

/// Removes the rows that do not have one of the values.
void keep_where(Table& table, const std::string& condition) {
  const std::size_t sign = condition.find('=');
  if (sign == std::string::npos || sign == 0)
    throw InvalidInput(fmt::format("--where: \"{}\" is not NAME=VALUE", printable(condition)));
  const std::size_t place = place_of(table, condition.substr(0, sign), "--where");
  std::vector<std::string> values;
  for (std::size_t begin = sign + 1; begin <= condition.size();) {
    const std::size_t end = std::min(condition.find(',', begin), condition.size());
    values.push_back(condition.substr(begin, end - begin));
    begin = end + 1;
  }
  Distinct had;
  for (const CellTexts& row : table.rows) had.add(row[place]);
  std::erase_if(table.rows, [&](const CellTexts& row) {
    return std::find(values.begin(), values.end(), row[place]) == values.end();
  });
  if (table.rows.empty())
    throw InvalidInput(fmt::format("--where: no row has {}; the values are {}", printable(condition),
                                   printable(had.joined())));
}

/// Returns the text columns that nothing else in the query names, except those with one value.
Places remaining_text(const Table& table, const Places& used) {
  Places places;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const bool constant = std::all_of(table.rows.begin(), table.rows.end(),
                                      [&](const CellTexts& row) { return row[c] == table.rows.front()[c]; });
    if (table.columns[c].left && !constant && std::find(used.begin(), used.end(), c) == used.end())
      places.push_back(c);
  }
  return places;
}

CellTexts cells_at(const CellTexts& row, const Places& places) {
  CellTexts cells;
  for (const std::size_t place : places) cells.push_back(row[place]);
  return cells;
}

Table without_pivot(const Table& table, Places rows, const Places& columns) {
  rows.insert(rows.end(), columns.begin(), columns.end());
  Table result;
  for (const std::size_t place : rows) result.columns.push_back(table.columns[place]);
  for (const CellTexts& row : table.rows) result.rows.push_back(cells_at(row, rows));
  return result;
}

/// Returns "15,466 (1.38x, 73.05 GiB)". In the base's own cell a ratio of one is left out.
std::string joined_cell(const CellTexts& values, bool base) {
  std::vector<std::string> others;
  for (std::size_t i = 1; i < values.size(); ++i)
    if (values[i] != "-" && !(base && (values[i] == "1.00x" || values[i] == "100.0%")))
      others.push_back(values[i]);
  return others.empty() ? values.front() : fmt::format("{} ({})", values.front(), fmt::join(others, ", "));
}

class Pivot {
 public:
  Pivot(const Table& table, const Places& rows, const Places& columns, std::size_t pivot)
      : table_(table), rows_(rows), columns_(columns), pivot_(pivot) {
    for (const CellTexts& row : table.rows) values_.add(row[pivot]);
  }

  Table result() {
    std::map<CellTexts, std::size_t> known;  // rows of the result by their identity
    std::vector<std::vector<const CellTexts*>> found;
    for (const CellTexts& row : table_.rows) {
      const auto [place, is_new] = known.try_emplace(cells_at(row, rows_), found.size());
      if (is_new) found.emplace_back(values_.texts.size(), nullptr);
      const auto value =
          std::find(values_.texts.begin(), values_.texts.end(), row[pivot_]) - values_.texts.begin();
      const CellTexts*& cell = found[place->second][static_cast<std::size_t>(value)];
      if (cell && *cell != row) refuse(*cell, row);  // sections may repeat a row in several groups
      cell = &row;
    }
    Table result;
    add_titles(result);
    result.rows.resize(found.size());
    for (const auto& [identity, place] : known) {
      CellTexts& cells = result.rows[place];
      cells = identity;
      for (std::size_t v = 0; v < found[place].size(); ++v)
        cells.push_back(found[place][v] ? joined_cell(cells_at(*found[place][v], columns_), v == 0) : "-");
    }
    return result;
  }

 private:
  void add_titles(Table& result) const {
    for (const std::size_t place : rows_) result.columns.push_back(table_.columns[place]);
    const std::string name = short_title(pivot_);
    for (const std::string& value : values_.texts) {
      std::string title = name == "recipe" ? value : name + " " + value;
      if (value == values_.texts.front()) title += ", " + short_title(columns_.front());
      result.columns.push_back({title});
    }
  }

  /// Returns a title without unit and further words: "tokens/s" for "tokens/s, all GPUs".
  std::string short_title(std::size_t place) const {
    const std::string& title = table_.columns[place].title;
    return title.substr(0, std::min(title.find(" ("), title.find(',')));
  }

  [[noreturn]] void refuse(const CellTexts& a, const CellTexts& b) const {
    Distinct differing;
    for (std::size_t c = 0; c < a.size(); ++c)
      if (table_.columns[c].left && a[c] != b[c]) differing.add(table_.columns[c].title);
    throw InvalidInput(fmt::format("--pivot: two rows of {}, {} {}; {}",
                                   printable(fmt::format("{}", fmt::join(cells_at(a, rows_), ", "))),
                                   printable(table_.columns[pivot_].title), printable(a[pivot_]),
                                   differing.texts.empty()
                                       ? "no text column tells them apart"
                                       : "add to --rows, or to --where: " + printable(differing.joined())));
  }

  const Table& table_;
  const Places &rows_, &columns_;
  std::size_t pivot_;
  Distinct values_{};
};

}  // namespace

Table query_table(const Table& table, const ColumnQuery& query) {
  Table whole = whole_of(table);
  for (const std::string& condition : query.where) keep_where(whole, condition);
  const Places columns = places_of(whole, query.columns, "--columns");
  Places used = columns;
  if (!query.pivot.empty()) used.push_back(place_of(whole, query.pivot, "--pivot"));
  const Places rows =
      query.rows.empty() ? remaining_text(whole, used) : places_of(whole, query.rows, "--rows");
  return query.pivot.empty() ? without_pivot(whole, rows, columns)
                             : Pivot(whole, rows, columns, used.back()).result();
}

}  // namespace precbench
