// Completion scripts, generated from the same data as --help.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/help_parts.h"

namespace precbench {

/// Shells with a completion script: bash, zsh, fish.
std::vector<std::string> completion_shells();

/// Returns the script that completes commands, flags, and values: choices, recipes and their sets, presets,
/// files and folders, each also behind a comma. Throws InvalidInput for another shell.
std::string completion_script(const std::vector<HelpPage>& pages, const std::string& shell);

}  // namespace precbench
