// The command `advise`: joins its flags, which are fields of a case, with the half of the program that plans
// cases (bench) and the half that reads records (tools/advise).
#pragma once

#include <string>
#include <vector>

#include "bench/cli/axis.h"
#include "tools/advise/advise_command.h"

namespace precbench {

struct AdviseCommand {
  Axes axes;           ///< fields of the case
  std::string tokens;  ///< as typed; empty: unknown
  AdviseOptions options;
};

CLI::App* add_advise_command(CLI::App& app, AdviseCommand& command);

/// Prints the advice and returns the exit status (tools/advise/advise_command.h). Throws InvalidInput.
int advise(const AdviseCommand& command);

/// Returns the functions that advise needs, for this machine.
AdviseHost advise_host();

}  // namespace precbench
