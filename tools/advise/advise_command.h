// precbench advise: which recipe, at what loss gap. Answers from records and a dry run; runs nothing.
//
// Exit status: 0 with a recommendation, 1 nothing fits, 2 bad input (InvalidInput), 3 no recipe has both a
// speed on such a GPU and evidence of its loss.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/advise/advise_host.h"

namespace CLI {
class App;
}

namespace precbench {

struct AdviseOptions {
  AdviseHost::Words given;           ///< fields of the case except the recipe, as typed
  std::vector<std::string> recipes;  ///< empty: those studied on trained models that are not known to fail
  std::string gpu;                   ///< empty: the GPU of this machine
  std::optional<double> tokens;      ///< of the planned run
  std::optional<double> price;       ///< per GPU hour
  std::vector<std::string> base;     ///< BF16 runs of the reader, for the slope of the loss
  std::vector<std::string> records;  ///< record files and folders: measured by the reader
  std::string serve = "bf16";        ///< how the trained weights will be used: "bf16" or "recipe"
  std::string stack = "precbench";   ///< whose speed decides
  bool json = false;
};

inline constexpr int kAdviceGiven = 0, kNothingFits = 1, kNothingProven = 3;

/// Prints the advice and returns the exit status.
int advise(const AdviseOptions& options, const AdviseHost& host);

/// Adds the flags of `advise` that are not fields of a case.
void add_advise_flags(CLI::App& command, AdviseOptions& options);

}  // namespace precbench
