// Which of a record's warnings a user hears while the sweep still runs: those that cast doubt on all its cases.
#pragma once

#include <string>
#include <vector>

#include "results/record.h"

namespace precbench {

/// Held-out text that was trained on; a GPU whose driver keeps our kernels out. Of each kind the first in this process.
std::vector<std::string> told_at_once(const Record& record);

}  // namespace precbench
