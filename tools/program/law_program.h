// The command `law`: prints tables of the law of the loss gap (tools/law), or the evidence in a folder of records.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace precbench {

struct LawCommand {
  std::string evidence;  ///< folder of records whose evidence is printed as CSV; empty: print tables
  std::vector<std::string> tables;              ///< by name; empty: all of them
  std::string format = "term";                  ///< term or md
  std::vector<std::string> parameters, tokens;  ///< of the tables of sizes; empty: those of LawSizes
  std::vector<std::string> recipes;
  std::vector<std::string> studies;  ///< of the table of studies, by their records; empty: all
};

CLI::App* add_law_command(CLI::App& app, LawCommand& command);

/// Prints what was asked for and returns the exit status. Throws InvalidInput.
int law(const LawCommand& command);

}  // namespace precbench
