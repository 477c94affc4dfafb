// Report columns: title, unit, machine-readable value and displayed text. All output formats use this table.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/analysis/analysis.h"
#include "tools/text/table.h"

namespace precbench {

/// Table that shows a column; all: both tables; none: machine-readable output only.
enum class Topic : std::uint8_t { speed, loss, all, none };

struct Column {
  Topic topic;
  const char* key;     ///< machine-readable name
  bool derived;        ///< included in CSV; false if the record already holds the value under its own name
  const char* title;   ///< displayed heading, empty if not displayed; "GPU" becomes "rank" on the CPU
  const char* unit;    ///< of the value; empty for text and pure numbers
  bool left;           ///< left-aligned, for text
  const char* legend;  ///< meaning of the number, in half a line; empty if the title suffices
  nlohmann::ordered_json (*value)(const Row& row);  ///< null when unknown
  std::string (*text)(const Row& row);              ///< empty when unknown
  const char* trivial = "";                         ///< the column is omitted if it holds no other text
  bool relative = false;                            ///< relative to BF16, so BF16's own value carries no
                                                    ///< information
  int rank = kOrdinaryRank;                         ///< as in TableColumn
};

inline constexpr const char* kStatusKey = "status";

/// Returns the heading, with ranks called `rank`.
std::string title_of(const Column& column, const char* rank);

/// Returns all columns that follow those that identify the case.
const std::vector<Column>& report_columns();

/// Returns the unit of a case field according to the schema, e.g. "tokens"; empty if it has none.
std::string case_unit(const std::string& key);

/// Formats bytes with binary units: "61.02 GiB", "105.3 MiB".
std::string bytes_text(double bytes);
/// Formats network traffic with decimal units: "5.42 GB", "105 MB", "1.5 kB".
std::string wire_text(double bytes);
/// Formats a rate: thousands separators from 1,000 on, three or four significant digits below.
std::string rate_text(double value);

}  // namespace precbench
