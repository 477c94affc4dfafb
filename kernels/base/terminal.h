// The terminal behind a file descriptor.
#pragma once

#include <cstddef>

namespace precbench {

/// Returns the characters per line of the terminal behind `descriptor`; if it is none, the environment
/// variable COLUMNS, else 100. At least 40, at most 1000.
std::size_t terminal_width(int descriptor);

}  // namespace precbench
