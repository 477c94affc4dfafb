// precbench report: compares the recipes in record files. Needs no GPU.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "results/record/record_file.h"
#include "tools/text/document.h"

namespace precbench {

struct ReportOptions {
  std::vector<std::string> paths;  ///< record files, folders of them, or "-" for standard input
  std::string format = "term";     ///< term, md, html, csv or json
  std::string output;              ///< output file, whose folder is created; empty: standard output
  std::string plots{};             ///< folder for figures; empty: only those inside an HTML page
};

/// Writes the report. Returns the exit status: 0, or 1 if figures requested by --plots could not be drawn.
/// Throws InvalidInput if a path has no record or the output cannot be written. With CSV and JSON, problems
/// of the input go to standard error, one line each.
int report(const ReportOptions& options);

/// Returns the human-readable report. `set` must not be empty.
Document make_report(const RecordSet& set);

/// Writes a header with units and one row per record: every scalar of the record, then the derived columns.
/// Writes line by line, since the whole text may be larger than the records.
void make_csv(const RecordSet& set, const std::function<void(const std::string& line)>& write);

/// Returns one object per row of the analysis (seeds combined): its case fields, every column, and the units.
nlohmann::ordered_json make_json(const RecordSet& set);

}  // namespace precbench
