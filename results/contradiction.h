// Does a record agree with itself? Some of its numbers follow from others that stand beside them; a record in
// which they do not was changed by hand or damaged, and nobody can say which of the two is true.
#pragma once

#include <optional>
#include <string>

#include "results/record.h"

namespace precbench {

/// The first contradiction, in one line that names both sides: "metrics.tokens_per_s is 99999999, but
/// training.tokens_per_step over timing.median_ms gives 18500". Null where there is none. What is null or
/// missing contradicts nothing.
std::optional<std::string> contradiction(const Record& record);

}  // namespace precbench
