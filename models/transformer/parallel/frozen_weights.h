// The model's weights of a run that trains adapters (lora.h). They have no gradient, master or optimizer state. Their
// quantized copies for fprop and dgrad are made once, when the weights are set, and not in every GEMM.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/transformer/parallel/fp8_weights.h"
#include "models/transformer/state/layout.h"
#include "models/transformer/state/state.h"

namespace precbench {

/// Formats of a block's weights in fprop and in dgrad, by role; BF16: no copy is kept.
struct FrozenFormats {
  std::array<QuantFormat, kLinearRoles - 1> fprop{}, dgrad{};
};

/// Returns true if quantizing a weight again would give the same bits, so that a copy can be kept: it depends on no
/// random numbers, on no history, and on no other copy.
bool can_keep_copy(const QuantFormat& format);

class FrozenWeights {
 public:
  /// Kind of their tensors in a checkpoint.
  static constexpr const char* kStateKind = "frozen";

  /// `dtype`: of the weights. `formats`: of the copies of each block; empty: none are kept.
  FrozenWeights(Device& device, Arena& arena, const ModelConfig& config, DType dtype,
                const std::vector<FrozenFormats>& formats);

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

  /// Makes the copies. Call after weights have changed.
  void quantize() const;
  /// Sets the values with which training of the whole model would start (Parameters::initialize).
  void initialize(std::uint64_t seed, float std);
  /// Calls visit(index in layout order, parameter, values) for every parameter.
  void for_each(
      const std::function<void(std::size_t index, const Parameter& p, const Tensor& values)>& visit) const;
  /// Returns "frozen/NAME" for every parameter.
  std::vector<StateTensor> state() const;

 private:
  /// Copies of a linear layer's weight, empty where none is kept.
  struct Copies {
    GemmOperand rowwise, columnwise;
  };

  Device& device_;
  Layout layout_;
  std::vector<std::array<Copies, kLinearRoles - 1>> copies_;  // by layer and role
  Tensor amax_;                                               // f32 [1], scratch of per-tensor scales
  Tensor weights_;                                            // flat
  Tensor discarded_;                                          // f32, as long as the vectors of a unit
};

}  // namespace precbench
