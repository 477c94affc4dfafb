// Amaxes of weights that are scaled by their own amax, so that GEMMs that quantize a weight read it once
// instead of twice. Stacked expert weights have one per expert.
//
//   kept        the optimizer records the amax of the weights that it writes, so it is always up to date
//   otherwise   the first GEMM after an update records it; later GEMMs and micro-steps reuse it
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/linear_role.h"
#include "kernels/numerics/recipe.h"
#include "models/config/config.h"

namespace precbench {

/// Returns true if a recipe scales weights by their own amax.
inline bool has_weight_amaxes(const Recipe& recipe) {
  const auto own = [](const QuantFormat& w) { return w.granularity == Granularity::tensor && !w.delayed(); };
  return own(recipe.fprop.b) || own(recipe.dgrad.b);
}

class WeightAmaxes {
 public:
  struct Slot {
    Tensor amax;         ///< f32 [1], or [1, experts] of a stack
    bool known = false;  ///< the amax is valid
    Tensor kept = {};    ///< weights whose amax is always valid; empty: the next GEMM determines it
  };

  /// `experts`: this rank's experts of a block.
  WeightAmaxes(Arena& arena, const ModelConfig& config, std::int64_t experts);

  /// Returns the slot of a weight. `layer`: the block, any for the head.
  Slot* slot(std::int64_t layer, LinearRole role);
  /// From now on the optimizer records the amax of `matrix`, a BF16 view of `unit` with a fixed address. Does
  /// nothing unless the offset in `unit` and the size (of an expert) are multiples of 8.
  void keep(Slot* slot, const Tensor& unit, const Tensor& matrix);

  /// Call after the optimizer has changed the weights: only kept amaxes remain valid.
  void forget();
  /// Recomputes the kept amaxes after a change not made by the optimizer.
  void refresh(Device& device);
  /// Zeros the amaxes that the optimizer is about to raise.
  void begin_update(Device& device);
  /// Returns the kept amaxes of weights in a run, with their element ranges in it.
  std::vector<ops::WeightAmax> of_run(const Tensor& run) const;

 private:
  std::vector<Slot> slots_;
  Tensor all_;
  bool keeps_ = false;  // true if any slot is kept
};

}  // namespace precbench
