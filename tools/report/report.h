// precbench report: compares the recipes in record files. Needs no GPU.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record_file.h"
#include "tools/history/history_command.h"
#include "tools/report/column_table.h"
#include "tools/report/report_selection.h"
#include "tools/text/document.h"

namespace precbench {

/// Selection of rows and sections of a report.
struct ReportView {
  Selection selection{};
  std::string sections{};  ///< names, separated by commas or bars, or "all"; empty: by `overview`
  bool overview = false;   ///< the sections that come first to a reader; otherwise all but the headline
  ColumnQuery query{};     ///< with columns: instead of whole sections, by default that of speed
  std::string base{};      ///< recipe of the ratios in section speed; empty: bf16
  std::string against{};   ///< incumbent of all studies; empty: the one that the records name
};

struct ReportOptions {
  std::vector<std::string> paths;  ///< record files, folders of them, or "-" for standard input
  std::string format = "term";     ///< term, md, html, csv or json
  std::string output;              ///< output file, whose folder is created; empty: standard output
  std::string plots{};             ///< folder for figures; empty: only those inside an HTML page
  std::string sections{};          ///< as ReportView::sections; empty: on a terminal the overview
  bool brief = false;              ///< the headline alone
  bool wide = false;               ///< tables keep all columns on a terminal
  std::string color = "auto";      ///< as in standard_screen()
  Selection selection{};
  ColumnQuery query{};
  std::string base{};     ///< as ReportView::base
  std::string against{};  ///< as ReportView::against
  HistoryOptions history{};      ///< with `asked`: a history instead; paths, format, output, color and wide are those above
  HistoryCases history_cases{};  ///< for a history
};

/// Writes the report. Returns the exit status: 0, or 1 if figures requested by --plots could not be drawn; that of
/// report_history() for a history.
/// Throws InvalidInput if a path has no record or the output cannot be written. With CSV and JSON, problems
/// of the input go to standard error, one line each.
int report(const ReportOptions& options);

/// Returns the human-readable report. `set` must not be empty. Throws InvalidInput if a section's name is unknown
/// or the records have none of the sections.
Document make_report(const RecordSet& set, const ReportView& view = {});

/// Writes a header with units and one row per record: every scalar of the record, then the derived columns.
/// Writes line by line, since the whole text may be larger than the records.
void make_csv(const RecordSet& set, const Selection& selection,
              const std::function<void(const std::string& line)>& write);

/// Returns one object per row of the analysis (seeds combined): its case fields, every column, and the units.
nlohmann::ordered_json make_json(const RecordSet& set, const Selection& selection = {});

}  // namespace precbench
