// The table of optimizers. See optimizers.h.
#include "models/transformer/optimizer/optimizers.h"

#include <stdexcept>

#include "models/transformer/optimizer/update_rules.h"

namespace precbench {

const std::vector<OptimizerSpec>& optimizers() {
  static constexpr KeptState kBoth{.m = true, .v = true}, kMean{.m = true}, kFactors{.factors = true};
  // Constants are the authors' (Muon: Keller Jordan's, with AdamW's for everything but block matrices).
  // Exceptions: AdamW's beta2 is the usual one for language models, and Adafactor's eps is PyTorch's, FP32's
  // unit roundoff.
  static const std::vector<OptimizerSpec> all = {
      {.name = "adamw",
       .constants = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
       .block_matrices = kBoth,
       .others = kBoth,
       .update = adamw_update,
       .records_amaxes = true},
      {"lion", {.beta1 = 0.9, .beta2 = 0.99}, kMean, kMean, lion_update},
      {"adafactor", {.eps = 0x1p-23}, kFactors, kFactors, adafactor_update, adafactor_scalars},
      {"muon", {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.95}, kMean, kBoth, muon_update},
  };
  return all;
}

const OptimizerSpec& optimizer_named(const std::string& name) {
  for (const OptimizerSpec& spec : optimizers())
    if (name == spec.name) return spec;
  throw std::invalid_argument("no optimizer has the name " + name);
}

}  // namespace precbench
