// Detection of options that have no effect on any case.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/cli/axis.h"

namespace precbench {

/// Returns "--glob: why" if a field is set that has no effect on any of `cases`, such as --glob without a
/// folder of text; else empty. A value that affects some cases only is fine. `flags`: fields set on the
/// command line. `file`: fields set in the sweep or study file, which are ignored if a flag has made them
/// useless.
std::string unused_option(const std::vector<Plan>& cases, const Axes& flags, const Axes& file);

/// Throws InvalidInput if there is an unused option.
void refuse_unused(const std::vector<Plan>& cases, const Axes& flags, const Axes& file);

}  // namespace precbench
