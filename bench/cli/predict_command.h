// The command `predict`: predictions beside published throughput, or beside steps of records.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace precbench {

struct PredictCommand {
  std::string published;             ///< file of points; empty: records
  std::vector<std::string> records;  ///< files and folders; empty: published points
  std::string out;                   ///< file of predictions, a line for each point or step; empty: none
  bool stacks = false;               ///< compares other software with our step, from both
};

CLI::App* add_predict_command(CLI::App& app, PredictCommand& command);

/// Writes one JSON object per line to the file of --out, unless its path is empty. Returns the exit status.
int write_lines(const std::string& path, const std::vector<nlohmann::ordered_json>& lines);

/// Prints the errors by group and writes the predictions. Returns the exit status: 1 if the file cannot be written. Throws
/// InvalidInput for a file of points with a mistake, for records that cannot be read, and for both or neither.
int predict(const PredictCommand& command);

}  // namespace precbench
