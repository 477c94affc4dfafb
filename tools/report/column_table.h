// Tables of one's own from the tables of a report: some columns, some rows, and a field whose values become
// columns. The pages of this repository are filled that way.
#pragma once

#include <string>
#include <vector>

#include "tools/text/document.h"

namespace precbench {

/// Columns are named by their titles, without what follows a comma, bracket or parenthesis, or by their first
/// words: "seq" for "seq (tokens)", "after 400 steps" for "after 400 steps [95%], nats".
struct ColumnQuery {
  std::vector<std::string> columns{};  ///< shown, in this order; empty: no query
  std::vector<std::string> rows{};     ///< columns that identify a row, shown first; empty: all other text
  std::string pivot{};                 ///< column whose values become columns; empty: none
  std::vector<std::string> where{};    ///< "NAME=VALUE[,VALUE]": rows that are kept
};

/// Returns the queried table. With a pivot, a cell has the first column's value, and the others' in parentheses.
/// Throws InvalidInput for an unknown name, no rows, and differing rows of one cell.
Table query_table(const Table& table, const ColumnQuery& query);

}  // namespace precbench
