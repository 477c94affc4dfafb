// precbench report --history: runs of many nights, their changes, and the exit status of a nightly guard.
//
// Exit status: 0 done, or with --fail-on slower no case got slower; 1 a case got slower (--fail-on slower); 2 bad input
// (InvalidInput); 3 too few nights, or with --fail-on slower undecided.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/gate/gate_render.h"

namespace CLI {
class App;
}

namespace precbench {

/// Knowledge of the program's cases that a history needs.
struct HistoryCases {
  nlohmann::ordered_json defaults = nlohmann::ordered_json::object();  ///< all case fields at their defaults
  RerunCommand rerun{};
};

struct HistoryOptions {
  bool asked = false;              ///< --history
  std::string since;               ///< "14d", "2w" or a date; empty: all changes
  std::string fail_on;             ///< "slower"; empty: nothing
  std::string append;              ///< history file that gets new rows; empty: none
  std::vector<std::string> paths;  ///< files of records and rows, folders of them, or "-"
  std::string format = "term";     ///< term, md or json
  std::string output;              ///< empty: standard output
  std::string color = "auto";
  bool wide = false;
};

/// Writes the history and returns the exit status. With `append`, the rows of `paths` that the file lacks are appended to
/// it before anything is judged, and its rows are judged with them. Throws InvalidInput if a flag is malformed, a path
/// cannot be read or has no run, or an output cannot be written.
int report_history(const HistoryOptions& options, const HistoryCases& cases);

/// Adds --history, --since, --fail-on and --append to the report.
void add_history_options(CLI::App& command, HistoryOptions& options);

/// Returns the time of --since: days or weeks before `newest`, or the start of a day (UTC). Throws InvalidInput.
std::int64_t since_time(std::string_view text, std::int64_t newest);

}  // namespace precbench
