// Options that a user has set and that nothing would read.
#pragma once

#include <vector>

#include "bench/case/plan.h"
#include "bench/cli/axis.h"

namespace precbench {

/// Throws InvalidInput, "--glob: why", where a field is set that no case of these reads, as --glob without a folder of
/// text. An axis may have values that only some cases read: those keep their rows. `flags`: what the command line gave;
/// `file`: what the sweep or study file did, none of which a flag has made useless.
void refuse_unused(const std::vector<Plan>& cases, const Axes& flags, const Axes& file);

}  // namespace precbench
