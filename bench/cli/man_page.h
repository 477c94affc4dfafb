// The man page, generated from the same data as --help.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/help_parts.h"

namespace precbench {

/// Returns precbench(1) in man's macros. `pages`: those of pages_of(). It has no date, so that it changes
/// with its content only.
std::string man_page(const std::vector<HelpPage>& pages, const std::string& version);

}  // namespace precbench
