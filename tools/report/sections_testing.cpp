// See sections_testing.h.
#include "tools/report/sections_testing.h"

#include <cstdlib>
#include <regex>
#include <sstream>

namespace precbench {

Record with(Record record, const std::string& key, const nlohmann::ordered_json& value) {
  record.case_fields[key] = value;
  return record;
}

std::string text_of_section(Section section) {
  if (section.lines.empty() && !section.table) return "";
  return std::regex_replace(render_term(Document{"", {std::move(section)}}), std::regex("\n    "), " ");
}

std::string section_of(const std::vector<Record>& records, const std::string& title) {
  const RecordSet set = samples::set_of(records);
  for (Section& section : make_report(set).sections)
    if (section.title == title) return text_of_section(std::move(section));
  return "";
}

std::string csv_of(const RecordSet& set) {
  std::string text;
  make_csv(set, {}, [&](const std::string& line) { text += line; });
  return text;
}

std::vector<std::string> lines_with(const std::string& text, const std::string& machine) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    if (contains(line, machine)) lines.push_back(line);
  return lines;
}

std::vector<Record> two_gathers(const std::string& recipe) {
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

std::vector<Record> with_speeds(std::vector<Record> records) {
  for (const auto& [recipe, ms] :
       {std::pair("bf16", 250.0), std::pair("blockwise", 200.0), std::pair("tensorwise", 180.0)})
    records.push_back(samples::gpu_record(recipe, ms));
  return records;
}

bool gnuplot_is_there() { return std::system("command -v gnuplot >/dev/null 2>&1") == 0; }

}  // namespace precbench
