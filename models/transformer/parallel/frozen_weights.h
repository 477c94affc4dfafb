// The model's weights of a run that trains adapters (lora.h). They have no gradient, master or optimizer state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/transformer/parallel/fp8_weights.h"
#include "models/transformer/state/layout.h"
#include "models/transformer/state/state.h"

namespace precbench {

class FrozenWeights {
 public:
  /// Kind of their tensors in a checkpoint.
  static constexpr const char* kStateKind = "frozen";

  /// `dtype`: of the weights.
  FrozenWeights(Device& device, Arena& arena, const ModelConfig& config, DType dtype);

  /// Returns the layout of the model, whose units have the same numbers as those of its adapters.
  const Layout& layout() const { return layout_; }
  Tensor unit(int unit) const {
    return weights_.elements(layout_.shard_offset(unit), layout_.shard_size(unit));
  }
  BlockWeights block(std::int64_t layer) const;
  /// Returns where backward writes gradients of a block's vectors, which nothing reads.
  BlockTensors block_gradients(std::int64_t layer) const;
  /// Returns where backward writes the gradient of the final norm, [1, 2 C], which nothing reads.
  Tensor discarded() const { return discarded_; }

  /// Sets the values with which training of the whole model would start (Parameters::initialize).
  void initialize(std::uint64_t seed, float std);
  /// Calls visit(index in layout order, parameter, values) for every parameter.
  void for_each(
      const std::function<void(std::size_t index, const Parameter& p, const Tensor& values)>& visit) const;
  /// Returns "frozen/NAME" for every parameter.
  std::vector<StateTensor> state() const;

 private:
  Device& device_;
  Layout layout_;
  Tensor weights_;    // flat
  Tensor discarded_;  // f32, as long as the vectors of a unit
};

}  // namespace precbench
