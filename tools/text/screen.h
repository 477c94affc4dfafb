// Output to a terminal through a pager. results/text/screen.h describes the terminal.
#pragma once

#include <string>

#include "results/text/screen.h"

namespace precbench {

/// Writes to standard output, through a pager if it is a terminal: the environment variable PAGER, else
/// `less -RFX`. An empty PAGER, or `cat`, or a pager that cannot be started, means none.
void page_text(const std::string& text);

}  // namespace precbench
