// Changes of the first weights, right after they were drawn or loaded, that leave the model's function as it was: how a
// study finds its noise floor (--perturb) and how much range a recipe has left (--stress).
#pragma once

#include "bench/case/definition.h"
#include "models/transformer/parameters.h"

namespace precbench {

/// Applies what the definition names. The same for every sharding; moments are not touched.
void change_weights(Parameters& parameters, const ModelConfig& model, const InitDefinition& init);

}  // namespace precbench
