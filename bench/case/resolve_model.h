// Plans of models that are no preset and no file: a tensor rank's share, a published shape.
#pragma once

#include "bench/case/plan.h"

namespace precbench {

/// Resolves a case with this shape instead of that of the model it names; a cut to some layers applies to it. Throws
/// InvalidInput like resolve(). The plan has no id: no record is made of it, and searches resolve thousands.
Plan resolve_model(const Case& c, const ModelConfig& model);

/// Likewise for the definition, which resolve_model() needs.
Definition define_model(const Case& c, const ModelConfig& model, Refusals refusals);

}  // namespace precbench
