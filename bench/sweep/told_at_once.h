// Which warnings a user hears before and while the sweep runs: those of its models' files, and of a record those that cast
// doubt on all its cases or tell of lost work.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "results/record.h"

namespace precbench {

/// Returns every file that could not be written. Of each other kind (held-out text that was trained on, a GPU whose driver
/// keeps our kernels out, values that could not be recorded, step times that make no reliable speed) the first in this process.
std::vector<std::string> told_at_once(const Record& record);

/// Returns Plan::model_warnings() of all cases, each line once, and of each model the position warning of its longest
/// sequence. The records have them too.
std::vector<std::string> model_warnings(const std::vector<Plan>& grid);
/// Writes them to standard error, a line each.
void tell_model_warnings(const std::vector<Plan>& grid);

}  // namespace precbench
