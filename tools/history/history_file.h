// Reads and extends histories: files of rows (history_row.h), of records, or of both.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/history/history_row.h"

namespace precbench {

struct HistoryRows {
  std::vector<HistoryRow> rows;  ///< by time; each run once
  /// One line each: lines that are neither row nor record, and runs with two different results for one case and time,
  /// all of which are left out. Those beyond a few are counted in a last line.
  std::vector<std::string> problems;
  std::size_t repeated = 0;      ///< rows that say again what another one says
  std::size_t without_time = 0;  ///< records without a speed: failed, emulated, of a study
};

/// Reads record files and history files, plain or packed with xz, and those of folders (record_folder.h). "-" is
/// standard input. Throws InvalidInput if a path does not exist or cannot be read.
HistoryRows read_history(const std::vector<std::string>& paths, const nlohmann::ordered_json& default_case);

/// Appends to a history file those rows of `history` that `known` lacks, in one write. Returns their number. Throws
/// InvalidInput if the file cannot be written.
std::size_t append_history(const std::string& path, const HistoryRows& history, const HistoryRows& known);

/// Joins two histories.
HistoryRows joined(HistoryRows a, HistoryRows b);

}  // namespace precbench
