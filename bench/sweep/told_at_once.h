// Which of a record's warnings a user hears while the sweep still runs: those that cast doubt on all its cases, and
// work that is lost.
#pragma once

#include <string>
#include <vector>

#include "results/record.h"

namespace precbench {

/// Returns every file that could not be written. Of each other kind (held-out text that was trained on, a GPU whose driver
/// keeps our kernels out, values that could not be recorded, step times that make no reliable speed) the first in this process.
std::vector<std::string> told_at_once(const Record& record);

}  // namespace precbench
