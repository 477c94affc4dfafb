// Which warnings a user hears before and while the sweep runs: those of its models' files, and of a record those that cast
// doubt on all its cases.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "results/record.h"

namespace precbench {

/// Held-out text that was trained on; a GPU whose driver keeps our kernels out. Of each kind the first in this process.
std::vector<std::string> told_at_once(const Record& record);

/// Returns Plan::model_warnings() of all cases, each line once, and of each model the position warning of its longest
/// sequence. The records have them too.
std::vector<std::string> model_warnings(const std::vector<Plan>& grid);
/// Writes them to standard error, a line each.
void tell_model_warnings(const std::vector<Plan>& grid);

}  // namespace precbench
