// The command `predict`: predictions beside published throughput, or beside steps of records.
#pragma once

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
};

CLI::App* add_predict_command(CLI::App& app, PredictCommand& command);

/// Prints the errors by group and writes the predictions. Returns the exit status: 1 if the file cannot be written. Throws
/// InvalidInput for a file of points with a mistake, for records that cannot be read, and for both or neither.
int predict(const PredictCommand& command);

}  // namespace precbench
