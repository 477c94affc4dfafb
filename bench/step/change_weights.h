// Changes of the first weights, right after they were drawn or loaded, that preserve the model's function. A
// study measures its noise floor with --perturb and the range that a recipe has left with --stress.
#pragma once

#include <functional>

#include "bench/case/definition.h"
#include "models/transformer/parallel/parameters.h"

namespace precbench {

/// Applies the changes named by the definition. The result does not depend on the sharding; moments are not
/// touched.
void change_weights(Parameters& parameters, const ModelConfig& model, const InitDefinition& init);

/// Runs body() with the stress applied to the weights, then restores them bit for bit. Multiplying by the
/// inverse power of two would not restore values that the stress has made subnormal or zero.
void under_stress(Parameters& parameters, const ModelConfig& model, const Stress& stress,
                  const std::function<void()>& body);

}  // namespace precbench
