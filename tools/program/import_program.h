// Models, GPUs and predictions for the command `import` (tools/import/import_command.h).
#pragma once

#include "tools/import/import_run.h"

namespace precbench {

/// Returns the functions that import needs.
ImportHost import_host();

}  // namespace precbench
