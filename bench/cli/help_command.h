// `precbench help`: commands and topics, and the completion of bash.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/help_parts.h"

namespace precbench {

struct HelpCommand {
  std::vector<std::string> words;  ///< a topic; of `completion` the shell behind it
};
CLI::App* add_help_command(CLI::App& app, HelpCommand& command);

/// Returns every word that may follow `precbench help`.
std::vector<std::string> help_words(const std::vector<HelpPage>& pages);

/// Prints the help that the words ask for: without words that of the program, of a command what COMMAND
/// --help prints. Throws InvalidInput for an unknown topic, with the nearest one.
int help(const CLI::App& program, const HelpCommand& command);

}  // namespace precbench
