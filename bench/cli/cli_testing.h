// For tests of the command line: what the built binary says.
#pragma once

#include <string>

#include "tools/testing/catch.h"
#include "tools/testing/processes.h"

namespace precbench::testing {

/// `variables`: "NAME=value ", in front of the program.
inline Answer precbench_says(const std::string& arguments, const std::string& variables = "") {
  return output_of(variables + PRECBENCH_BINARY_DIR "/precbench " + arguments);
}

inline std::string refused(const std::string& arguments, const std::string& variables = "") {
  INFO(arguments);
  return refusal_in(precbench_says(arguments, variables));
}

}  // namespace precbench::testing
