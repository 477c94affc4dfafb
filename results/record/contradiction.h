// Checks a record for contradictions. Some numbers follow from others; if they do not, the record was edited
// or damaged, and it is unknown which of the two is true.
#pragma once

#include <optional>
#include <string>

#include "results/record/record.h"

namespace precbench {

/// Returns the first contradiction in one line that names both sides, "metrics.tokens_per_s is 99999999, but
/// training.tokens_per_step over timing.median_ms gives 18500"; nullopt if there is none. Null and missing
/// values contradict nothing.
std::optional<std::string> contradiction(const Record& record);

}  // namespace precbench
