// The command `explain` with the rates that predictions use. See tools/explain/explain_command.h.
#pragma once

#include "tools/explain/explain_command.h"

namespace CLI {
class App;
}

namespace precbench {

CLI::App* add_explain_command(CLI::App& app, ExplainCommand& command);
int explain(const ExplainCommand& command);

}  // namespace precbench
