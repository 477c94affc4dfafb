// For tests of a report's sections: records that differ in a field, and one section as a terminal shows it.
#pragma once

#include <string>
#include <vector>

#include "results/record_samples.h"
#include "tools/report/report.h"
#include "tools/report/sections.h"
#include "tools/testing/text.h"

namespace precbench {

Record with(Record record, const std::string& key, const nlohmann::ordered_json& value);

/// The section of that title as a terminal shows it, its wrapped lines whole; empty if the report has none.
std::string section_of(const std::vector<Record>& records, const std::string& title);

/// The whole report as CSV.
std::string csv_of(const RecordSet& set);

/// The lines that hold a text.
std::vector<std::string> lines_with(const std::string& text, const std::string& machine);

/// bf16, and a recipe with either gather, on one and on two GPUs.
std::vector<Record> two_gathers(const std::string& recipe);

}  // namespace precbench
