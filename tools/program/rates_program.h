// The command `rates`: rates of ops by shape from records, for the cost model.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace precbench {

struct RatesCommand {
  std::vector<std::string> paths;
  std::string output = "results/rates";
};

CLI::App* add_rates_command(CLI::App& app, RatesCommand& command);

/// Writes a file for each machine of the records and returns the exit status: 1 if no record gives rates. Throws
/// InvalidInput.
int rates(const RatesCommand& command);

}  // namespace precbench
