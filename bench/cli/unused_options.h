// Options that a user has set and that nothing would read.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/cli/axis.h"

namespace precbench {

/// "--glob: why" where a field is set that no case of these reads, as --glob without a folder of text; else empty. An axis
/// may have values that only some cases read: the others keep their rows. `flags`: what the command line gave; `file`:
/// what the sweep or study file did, of which nothing counts that a flag has made useless.
std::string unused_option(const std::vector<Plan>& cases, const Axes& flags, const Axes& file);

/// Throws InvalidInput where there is one.
void refuse_unused(const std::vector<Plan>& cases, const Axes& flags, const Axes& file);

}  // namespace precbench
