// The amaxes of weights whose scales come from themselves, between two updates of the weights: the first GEMM that
// quantizes a weight leaves them here, and the others, of backward and of later micro-steps, read the weight once instead
// of twice. Of a scale for the tensor it is the tensor's amax; of scales for rows those of the weight's columns, which
// dgrad contracts over, and which fprop's cast sees on its way.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/numerics/linear_role.h"
#include "kernels/numerics/recipe.h"
#include "models/config/block.h"

namespace precbench {

/// What of a weight a recipe's scales come from, as far as it pays to keep it.
enum class WeightAmax : std::uint8_t { none, tensor, columns };
WeightAmax weight_amax(const Recipe& recipe);

class WeightAmaxes {
 public:
  struct Slot {
    Tensor amax;         ///< f32 [1], or [1, K] of a weight [N, K]
    bool known = false;  ///< some op before has written it
  };

  WeightAmaxes(Arena& arena, const ModelConfig& config, WeightAmax kind);

  /// `layer`: its block, any for the head; q has qkv's.
  Slot* slot(std::int64_t layer, LinearRole role);
  /// The weights have changed.
  void forget();

 private:
  std::vector<Slot> slots_;
};

}  // namespace precbench
