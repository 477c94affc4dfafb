// precbench explain: where the time of a training step of another program goes, from its profiler's trace.
//
// Exit status: 0 done, 1 the figure could not be drawn, 2 bad input (InvalidInput).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/explain/expectation.h"

namespace CLI {
class App;
}

namespace precbench {

struct ExplainCommand {
  std::vector<std::string> traces;  ///< one, or two to compare
  std::string gpu;                  ///< whose rates; empty: the GPU that the trace names
  std::string plots;                ///< folder of the figure; empty: none
  bool json = false;
};

/// Returns the rates of a GPU. `by_user`: its name is the value of --gpu, and an unknown one is InvalidInput; else it
/// is the trace's, and null means that there are none.
using ExpectationOf = std::function<std::unique_ptr<Expectation>(const std::string& gpu, bool by_user)>;

void add_explain_flags(CLI::App& command, ExplainCommand& options);

/// Prints the explanation and returns the exit status.
int explain(const ExplainCommand& command, const ExpectationOf& expectation_of);

}  // namespace precbench
