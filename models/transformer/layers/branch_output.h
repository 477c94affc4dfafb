// Output of a block's half on its way into the residual stream: as it is (Llama), times a factor (Granite), or
// normed (OLMo 2, Gemma).
#pragma once

#include <cstdint>

#include "models/transformer/layers/step_context.h"

namespace precbench {

/// Tensors that forward saves of a normed output; empty otherwise. Recomputation does not drop them.
struct BranchSaved {
  Tensor raw;   ///< the half's output before the norm [M, width]
  Tensor rstd;  ///< f32 [M]
};

class BranchOutput {
 public:
  explicit BranchOutput(const StepContext& step) : step_(step) {}

  /// Returns true if an output is added to the residual stream as its last GEMM writes it. Otherwise the
  /// gradient of the stream is not that GEMM's dY, and needs no quantized copies: it may be one rank's rows of it.
  static bool plain(const StepContext& step) {
    return step.config.block.norms == NormPlace::before && step.config.block.residual_scale == 1 &&
           !step.tensor;
  }

  void push_saved(BranchSaved& saved) const;
  /// Returns the tensor that the half's last GEMM writes, and computes `branch`, the output to add, from it.
  const Tensor& target(const BranchSaved& saved, const Tensor& branch) const;
  void forward(const BranchSaved& saved, const Tensor& gain, const Tensor& branch) const;
  /// Returns dY of `role`, the last layer of attention or the FFN in a block with a parallel residual: the stream's
  /// gradient with this layer's own copies. Allocates in the caller's scope.
  QuantizedTensor parallel_backward(std::int64_t layer, LinearRole role,
                                    const QuantizedTensor& dresidual) const;
  /// Returns dY of the half's last layer, `role`, from the gradient of the residual stream, and computes the
  /// gain's gradient. Allocates in the caller's scope.
  QuantizedTensor backward(std::int64_t layer, LinearRole role, const BranchSaved& saved, const Tensor& gain,
                           const Tensor& dgain, const QuantizedTensor& dresidual) const;

 private:
  bool normed() const { return step_.config.block.norms != NormPlace::before; }

  const StepContext& step_;
};

}  // namespace precbench
