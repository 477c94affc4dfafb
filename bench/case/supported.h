// Reasons why a plan cannot run: combinations and shapes that the program does not support. They become rows
// "unsupported"; invalid cases are refused earlier (define()).
#pragma once

#include <optional>
#include <string>

#include "bench/case/plan.h"

namespace precbench {

/// Returns why the ranks, the model's shapes or a (named) linear layer's shape are not supported; null if they
/// are.
std::optional<std::string> unsupported_reason(const Plan& plan);
/// Returns the first linear layer among these whose shape the recipe does not support, with the reason; null
/// if none.
std::optional<std::string> layers_unsupported_reason(const Plan& plan, const ConvertedLayers& layers);
/// Returns why the weights cannot be read in another recipe (--eval-recipes); null if they can.
std::optional<std::string> reading_unsupported_reason(const Plan& plan, const ConvertedLayers& reading);
/// Returns why gradients cannot be compared with BF16's (--fidelity-batches); null if they can.
std::optional<std::string> fidelity_unsupported_reason(const Plan& plan);

}  // namespace precbench
