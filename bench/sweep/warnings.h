// Warnings that are printed before and while the sweep runs: those of the models' files, and those of records
// that affect all cases or report lost files.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "results/record/record.h"

namespace precbench {

/// Returns a warning for every file that could not be written, and for every input file that is not what the case
/// takes it for (tensors left out, tokens of too few bits) unless warn_once() has printed it. Of each other kind
/// (held-out text that was trained on, a checkpoint of another build, a driver without support for our kernels,
/// values that could not be recorded, unreliable step times) returns only the first in this process.
std::vector<std::string> immediate_warnings(const Record& record);

/// Prints a warning on standard error, after "precbench: ", unless this process has printed it.
void warn_once(const std::string& warning);

/// Returns Plan::model_warnings() of all cases, each line once, and for each model the position warning of
/// its longest sequence. The records contain them too.
std::vector<std::string> model_warnings(const std::vector<Plan>& grid);
/// Prints them on standard error, a line each.
void print_model_warnings(const std::vector<Plan>& grid);

}  // namespace precbench
