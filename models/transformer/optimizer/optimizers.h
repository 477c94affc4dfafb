// Table of optimizers. To add one, add a row to optimizers().
#pragma once

#include <string>
#include <vector>

#include "models/transformer/state/optimizer_spec.h"

namespace precbench {

/// All optimizers; the first is the default.
const std::vector<OptimizerSpec>& optimizers();
/// Returns the optimizer with this name. Throws std::invalid_argument if there is none.
const OptimizerSpec& optimizer_named(const std::string& name);

}  // namespace precbench
