// Test helpers for report sections.
#pragma once

#include <string>
#include <vector>

#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/report/report.h"
#include "tools/report/sections.h"

namespace precbench {

Record with(Record record, const std::string& key, const nlohmann::ordered_json& value);

/// Returns a section in terminal format with wrapped lines joined; empty for an empty section.
std::string text_of_section(Section section);

/// Returns the section of that title in terminal format, with wrapped lines joined; empty if
/// the report lacks it.
std::string section_of(const std::vector<Record>& records, const std::string& title);

/// Returns the whole report as CSV.
std::string csv_of(const RecordSet& set);

/// Returns the lines of `text` that contain a string.
std::vector<std::string> lines_with(const std::string& text, const std::string& machine);

/// Returns records of BF16 and a recipe with both gather formats, on one and two GPUs.
std::vector<Record> two_gathers(const std::string& recipe);

/// Returns the records with BF16 and two faster recipes, blockwise and tensorwise, timed on a GPU.
std::vector<Record> with_speeds(std::vector<Record> records);

/// Returns true if figures can be drawn on this machine.
bool gnuplot_is_there();

}  // namespace precbench
