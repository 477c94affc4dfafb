// precbench report: records in, a comparison of the recipes out. Needs no GPU.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "results/record_file.h"
#include "tools/text/document.h"

namespace precbench {

struct ReportOptions {
  std::vector<std::string> paths;  ///< record files, folders of them, or "-" for standard input
  std::string format = "term";     ///< term, md, html, csv or json
  std::string output;              ///< a file, whose folder is made; empty: standard output
  std::string plots{};             ///< a folder for the figures; empty: only what a page has inside
};

/// Writes the report; returns the exit status: 0, or 1 where --plots was given and figures could not be drawn. Throws InvalidInput if a path holds no record or the output
/// cannot be written. With CSV and JSON, problems of the input go to standard error, one line each.
int report(const ReportOptions& options);

/// The report for people. The records must not be empty.
Document make_report(const RecordSet& set);

/// A header with units, and a row per record: every scalar of the record, then what the analysis derives. A line at a time,
/// since of many records a text would be larger than they are.
void make_csv(const RecordSet& set, const std::function<void(const std::string& line)>& write);

/// One object per row of the analysis (seeds together): the fields of its case, every column, and the units.
nlohmann::ordered_json make_json(const RecordSet& set);

}  // namespace precbench
