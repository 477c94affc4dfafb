// A SwiGLU feed-forward network over all tokens: a dense block's, and the shared expert of an MoE block.
//   gate|up = h Wgu^T;  s = SwiGLU(gate|up);  out = s Wd^T
#pragma once

#include <cstdint>

#include "models/transformer/layers/norm.h"
#include "models/transformer/layers/step_context.h"

namespace precbench {

struct FfnSaved {
  Tensor gate_up;      ///< [M, 2 ffn]
  Tensor swiglu_amax;  ///< f32 [1], if SwiGLU's output has one scale per tensor
};

class DenseFfn {
 public:
  /// `ffn`: width of SwiGLU's output.
  DenseFfn(const StepContext& step, LinearRole gate_up, LinearRole down, std::int64_t ffn)
      : step_(step), gate_up_(gate_up), down_(down), ffn_(ffn) {}

  /// Allocates what is saved also with recomputation, which stops before SwiGLU: its amax.
  void push_saved(std::int64_t layer, FfnSaved& saved) const;
  /// Allocates what recomputation writes again.
  void push_inner(FfnSaved& saved) const { saved.gate_up = step_.push(2 * ffn_); }

  /// Computes saved.gate_up from h, the norm's output.
  void forward_up(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w,
                  const QuantizedTensor& h) const;
  /// Computes the output [M, width] from saved.gate_up.
  void forward_down(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w,
                    const Tensor& out) const;
  /// Returns the gradient of the norm's output. `dy`: gradient of the output. The result and further
  /// temporaries are freed by the caller's scope.
  Tensor backward(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w, const BlockTensors& g,
                  const QuantizedTensor& dy, const NormOutput& norm) const;

 private:
  Activation activation() const { return step_.config.block.activation; }

  const StepContext& step_;
  LinearRole gate_up_, down_;
  std::int64_t ffn_;
};

}  // namespace precbench
