// The command `predict`: predictions beside published throughput.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace precbench {

struct PredictCommand {
  std::string published;  ///< file of points
  std::string out;        ///< file of predictions, a line for each point; empty: none
};

CLI::App* add_predict_command(CLI::App& app, PredictCommand& command);

/// Prints the errors by group and writes the predictions. Returns the exit status: 1 if the file cannot be written. Throws
/// InvalidInput for a file of points with a mistake.
int predict_published(const PredictCommand& command);

}  // namespace precbench
