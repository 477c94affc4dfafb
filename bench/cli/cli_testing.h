// Test helpers that run the built binary.
#pragma once

#include <string>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"

namespace precbench::testing {

/// Runs the binary with `arguments`, for a terminal so wide that no line is wrapped. `variables`: "NAME=value ",
/// placed before the program.
inline Answer precbench_says(const std::string& arguments, const std::string& variables = "") {
  return output_of("COLUMNS=1000 " + variables + PRECBENCH_BINARY_DIR "/precbench " + arguments);
}

/// Returns what the binary prints to standard output of a terminal with so many columns.
inline Answer precbench_prints(const std::string& arguments, int columns) {
  return output_of("(COLUMNS=" + std::to_string(columns) + " " PRECBENCH_BINARY_DIR "/precbench " +
                   arguments + " 2>/dev/null)");
}

/// Returns the one line with which the binary must refuse `arguments`, at status 2.
inline std::string refused(const std::string& arguments, const std::string& variables = "") {
  INFO(arguments);
  return refusal_in(precbench_says(arguments, variables));
}

}  // namespace precbench::testing
