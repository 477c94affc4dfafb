// The amaxes of weights that have one scale of their own, so that GEMMs that quantize a weight read it once instead of twice.
//
// Of stacked experts' weights each expert has its own.
//   kept   the optimizer leaves the amax of the weights that it has just written; it always stands for them as they are
//   else   the first GEMM after an update leaves it, and the others, of backward and of later micro-steps, take it
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/linear_role.h"
#include "kernels/numerics/recipe.h"
#include "models/config/config.h"

namespace precbench {

/// Whether a recipe makes a weight's scale of the weight's own amax.
inline bool has_weight_amaxes(const Recipe& recipe) {
  const auto own = [](const QuantFormat& w) { return w.granularity == Granularity::tensor && !w.delayed(); };
  return own(recipe.fprop.b) || own(recipe.dgrad.b);
}

class WeightAmaxes {
 public:
  struct Slot {
    Tensor amax;         ///< f32 [1], of a stack [1, experts]
    bool known = false;  ///< some op before has written it
    Tensor kept = {};    ///< the weights that it is always known of; empty: of those that a GEMM sees next
  };

  /// `experts`: of a block, those of this rank.
  WeightAmaxes(Arena& arena, const ModelConfig& config, std::int64_t experts);

  /// `layer`: its block, any for the head.
  Slot* slot(std::int64_t layer, LinearRole role);
  /// From now on the optimizer leaves the amax of this matrix, which stays where it is. BF16; nothing happens where first
  /// element within `unit`, which the optimizer updates, and size, or that of an expert's, are no multiples of 8.
  void keep(Slot* slot, const Tensor& unit, const Tensor& matrix);

  /// The weights have changed, and by the optimizer: kept amaxes are known.
  void forget();
  /// Finds the amaxes that are kept, of weights that somebody else has changed.
  void refresh(Device& device);
  /// Zeroes what the optimizer is about to raise.
  void begin_update(Device& device);
  /// Those kept of weights in a run, by their elements there.
  std::vector<ops::WeightAmax> of_run(const Tensor& run) const;

 private:
  std::vector<Slot> slots_;
  Tensor all_;
  bool keeps_ = false;  // any
};

}  // namespace precbench
