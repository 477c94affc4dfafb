// The columns of a report: what each is called, its unit, its value for programs and its text for people.
// Every format takes its columns from here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/analysis/analysis.h"

namespace precbench {

/// The table that shows a column; all: both; none: the column is for programs.
enum class Topic : std::uint8_t { speed, loss, all, none };

struct Column {
  Topic topic;
  const char* key;     ///< name for programs
  bool derived;        ///< CSV has it; false where the record has the value under a name of its own
  const char* title;   ///< heading for people, empty if they see none; on the CPU "GPU" reads "rank"
  const char* unit;    ///< of the value; empty for texts and pure numbers
  bool left;           ///< a text
  const char* legend;  ///< what the number means, in half a line; empty where the title says it
  nlohmann::ordered_json (*value)(const Row& row);  ///< null when unknown
  std::string (*text)(const Row& row);              ///< empty when unknown
  const char* trivial = "";                         ///< a column with no other text than this is left out
  bool relative = false;                            ///< to bf16, whose own value says nothing
};

inline constexpr const char* kStatusKey = "status";

/// The heading where ranks are called `rank`.
std::string title_of(const Column& column, const char* rank);

/// All columns behind the ones that name the case.
const std::vector<Column>& report_columns();

/// The unit of a case field as the schema says, "tokens"; empty if it has none.
std::string case_unit(const std::string& key);

/// "61.02 GiB", "105.3 MiB"
std::string bytes_text(double bytes);
/// What crosses a wire, by decimal units: "5.42 GB", "105 MB", "1.5 kB".
std::string wire_text(double bytes);
/// Thousands in groups of three from 1,000 on; three or four significant digits below.
std::string rate_text(double value);

}  // namespace precbench
