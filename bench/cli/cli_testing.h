// Test helpers that run the built binary.
#pragma once

#include <string>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"

namespace precbench::testing {

/// Runs the binary with `arguments`. `variables`: "NAME=value ", placed before the program.
inline Answer precbench_says(const std::string& arguments, const std::string& variables = "") {
  return output_of(variables + PRECBENCH_BINARY_DIR "/precbench " + arguments);
}

/// Returns the one line with which the binary must refuse `arguments`, at status 2.
inline std::string refused(const std::string& arguments, const std::string& variables = "") {
  INFO(arguments);
  return refusal_in(precbench_says(arguments, variables));
}

}  // namespace precbench::testing
