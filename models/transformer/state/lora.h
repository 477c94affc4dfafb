// Low-rank adapters (LoRA) of the blocks' linear layers:
//
//   y = x W^T + alpha / rank (x A^T) B^T      A [rank, in], B [out, rank]
//
// W is frozen. Every part of a matrix (q, k, v; gate, up) has an A and a B of its own, as in peft with
// target_modules "all-linear". The embedding, norms, biases, lm_head, routers and routed experts have none and are
// frozen, too.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/numerics/recipe.h"
#include "models/config/block.h"
#include "models/config/config.h"

namespace precbench {

struct LoraOptions {
  std::int64_t rank = 0;  ///< 0: no adapters, all weights are trained
  double alpha = 0;

  explicit operator bool() const { return rank > 0; }
  /// Returns the factor of the adapters' output.
  double scale() const { return alpha / static_cast<double>(rank); }
};

/// Return the names of a weight's adapters in peft's checkpoints: for "model.layers.0.mlp.up_proj.weight"
/// "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight".
std::string lora_a_name(const std::string& weight);
std::string lora_b_name(const std::string& weight);

/// Returns a recipe as layers with frozen weights run it: wgrad, whose operands adapters read instead, is BF16.
Recipe recipe_of_frozen(Recipe recipe);

/// Returns true if a linear layer of a block has adapters: experts and routers have none.
bool has_adapter(const LinearSpec& linear);

/// Returns the number of elements of all adapters of a model.
std::int64_t lora_parameter_count(const ModelConfig& config, std::int64_t rank);

/// Returns the bound of the uniform distribution from which A starts, Kaiming's with a = sqrt(5), as in peft.
float lora_bound(std::int64_t in);
/// Returns element `index` of all elements of A's first values.
float lora_first_value(std::uint64_t seed, std::int64_t index, float bound);

}  // namespace precbench
