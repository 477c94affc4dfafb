// For tests of a report's sections: records that differ in a field, and one section as a terminal shows it.
#pragma once

#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "results/record_samples.h"
#include "tools/report/report.h"
#include "tools/report/sections.h"
#include "tools/testing/text.h"

namespace precbench {

inline Record with(Record record, const std::string& key, const nlohmann::ordered_json& value) {
  record.case_fields[key] = value;
  return record;
}

/// The section of that title as a terminal shows it, its wrapped lines whole; empty if the report has none.
inline std::string section_of(const std::vector<Record>& records, const std::string& title) {
  const RecordSet set = samples::set_of(records);
  for (Section& section : make_report(set).sections)
    if (section.title == title)
      return std::regex_replace(render_term(Document{"", {std::move(section)}}), std::regex("\n    "), " ");
  return "";
}

/// The lines that hold a text.
inline std::vector<std::string> lines_with(const std::string& text, const std::string& machine) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    if (contains(line, machine)) lines.push_back(line);
  return lines;
}

/// bf16, and a recipe with either gather, on one and on two GPUs.
inline std::vector<Record> two_gathers(const std::string& recipe) {
  std::vector<Record> records;
  for (const int gpus : {1, 2}) {
    const auto add = [&](const char* name, const char* gather, double ms) {
      records.push_back(with(with(samples::gpu_record(name, ms), "gpus", gpus), "gather", gather));
    };
    add("bf16", "bf16", 250);
    if (gpus == 2) add(recipe.c_str(), "fp8", 100);
    add(recipe.c_str(), "bf16", 200);
  }
  return records;
}

}  // namespace precbench
