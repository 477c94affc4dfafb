// The columns of a report: what each is called, its unit, its value for programs and its text for people.
// Every format takes its columns from here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/analysis.h"

namespace precbench {

struct Column {
  const char* key;     ///< name in CSV; empty where the record already has the value under a name of its own
  const char* title;   ///< heading for people
  const char* unit;    ///< of the value; empty for texts and pure numbers
  bool left;           ///< a text
  const char* legend;  ///< what the number means, one line; empty where the title says it
  nlohmann::ordered_json (*value)(const Row& row);  ///< null when unknown
  std::string (*text)(const Row& row);              ///< empty when unknown
  const char* trivial = "";                         ///< a column with no other text than this is left out
};

/// All columns behind the ones that name the case.
const std::vector<Column>& report_columns();

/// The unit of a case field as the schema says, "tokens"; empty if it has none.
std::string case_unit(const std::string& key);

/// "61.02 GiB", "105.3 MiB"
std::string bytes_text(double bytes);

}  // namespace precbench
