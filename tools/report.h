// precbench report: records in, a comparison of the recipes out. Needs no GPU.
#pragma once

#include <string>
#include <vector>

#include "results/record_file.h"
#include "tools/document.h"

namespace precbench {

struct ReportOptions {
  std::vector<std::string> paths;  ///< record files, or folders of them
  std::string format = "term";     ///< term, md or csv
  std::string output;              ///< a file; empty: standard output
};

/// Writes the report; returns the exit status, 0. Throws InvalidInput if a path holds no record or the output
/// cannot be written. With CSV, problems of the input go to standard error, one line each.
int report(const ReportOptions& options);

/// The report for people. The records must not be empty.
Document make_report(const RecordSet& set);

/// One row per record: every scalar of the record, then what the analysis derives. Units stand in the header.
Table make_csv(const RecordSet& set);

}  // namespace precbench
