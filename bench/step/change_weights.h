// Changes of the first weights, right after they were drawn or loaded, that leave the model's function as it was: how a
// study finds its noise floor (--perturb) and how much range a recipe has left (--stress).
#pragma once

#include <functional>

#include "bench/case/definition.h"
#include "models/transformer/parameters.h"

namespace precbench {

/// Applies what the definition names. The same for every sharding; moments are not touched.
void change_weights(Parameters& parameters, const ModelConfig& model, const InitDefinition& init);

/// Runs body() while the weights bear the stress, after which they are what they were, to the bit: an inverse power of
/// two would not do that for what it made too small.
void under_stress(Parameters& parameters, const ModelConfig& model, const Stress& stress,
                  const std::function<void()>& body);

}  // namespace precbench
