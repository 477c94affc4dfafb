// Completion script of bash, generated from the same data as --help.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/help_parts.h"

namespace precbench {

/// Returns the script that completes commands, flags, and values: choices, recipes and their sets, presets,
/// files and folders, each also behind a comma. Throws InvalidInput for a shell other than bash.
std::string completion_script(const std::vector<HelpPage>& pages, const std::string& shell);

}  // namespace precbench
