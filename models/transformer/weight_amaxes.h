// The amaxes of weights that have one scale of their own, between two updates of the weights: the first GEMM that
// quantizes a weight leaves its amax here, and the others, of backward and of later micro-steps, read the weight once
// instead of twice.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/numerics/linear_role.h"
#include "kernels/numerics/recipe.h"

namespace precbench {

/// Whether a recipe makes a weight's scale of the weight's own amax.
inline bool has_weight_amaxes(const Recipe& recipe) {
  const auto own = [](const QuantFormat& w) { return w.granularity == Granularity::tensor && !w.delayed(); };
  return own(recipe.fprop.b) || own(recipe.dgrad.b);
}

class WeightAmaxes {
 public:
  struct Slot {
    Tensor amax;         ///< f32 [1]
    bool known = false;  ///< some op before has written it
  };

  WeightAmaxes(Arena& arena, std::int64_t layers);

  /// `layer`: its block, any for the head.
  Slot* slot(std::int64_t layer, LinearRole role);
  /// The weights have changed.
  void forget();

 private:
  std::vector<Slot> slots_;
};

}  // namespace precbench
