// A feed-forward network over all tokens: a dense block's, and the shared expert of an MoE block.
//   gate|up = h Wgu^T;  s = SwiGLU(gate|up);    out = s Wd^T
//   up = h Wu^T;        s = act(up + bias);     out = s Wd^T + bias, without a gate
#pragma once

#include <cstdint>

#include "models/transformer/layers/norm.h"
#include "models/transformer/layers/step_context.h"

namespace precbench {

struct FfnSaved {
  Tensor gate_up;       ///< [M, 2 ffn]; without a gate [M, ffn]
  Tensor gate;          ///< first ffn columns of gate_up, if selective recomputation keeps them
  GemmOperand input;    ///< gate_up in KeptActivations::activation_input, which then stays in its place
  bool direct = false;  ///< SwiGLU's ops make and read `input` themselves
  Tensor swiglu_amax;   ///< f32 [1], if the activation's output has one scale per tensor
  /// Output of the activation as KeptActivations says, [M, ffn] in BF16 or the copy that wgrad reads; both empty:
  /// backward computes it again.
  Tensor value;
  GemmOperand copy;
};

class DenseFfn {
 public:
  /// `ffn`: width of the activation's output.
  DenseFfn(const StepContext& step, LinearRole gate_up, LinearRole down, std::int64_t ffn)
      : step_(step), gate_up_(gate_up), down_(down), ffn_(ffn) {}

  /// Allocates what is saved also with recomputation, which stops before the activation: its amax and quantized input.
  void push_saved(std::int64_t layer, FfnSaved& saved) const;
  /// Allocates what selective recomputation keeps.
  void push_selected(std::int64_t layer, FfnSaved& saved) const;
  /// Allocates what recomputation writes again.
  void push_inner(FfnSaved& saved) const { saved.gate_up = step_.push(up_width()); }

  /// Allocates the activation's output, unless nothing of it is kept.
  void push_output(std::int64_t layer, FfnSaved& saved) const;

  /// Allocates saved.gate_up again and reads it back from saved.input, if backward needs it.
  void read_input(FfnSaved& saved) const;

  /// Computes saved.gate_up from h, the norm's output.
  void forward_up(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w, const QuantizedTensor& h,
                  ForwardKind kind = ForwardKind::full) const;
  /// Computes the output, this rank's rows of [M, width], from saved.gate_up.
  void forward_down(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w,
                    const Tensor& out) const;
  /// Returns the gradient of the norm's output. `dy`: gradient of the output. The result and further
  /// temporaries are freed by the caller's scope.
  Tensor backward(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w, const BlockTensors& g,
                  const QuantizedTensor& dy, const NormOutput& norm) const;

 private:
  Activation activation() const { return step_.config.block.activation; }
  bool gated() const { return step_.config.block.gated; }
  std::int64_t up_width() const { return (gated() ? 2 : 1) * ffn_; }
  /// Computes the input of the down layer, and the gradients of gate_up and that input again.
  void activate(QuantizedTensor& s, const FfnSaved& saved, const BlockWeights& w) const;
  void activate_backward(QuantizedTensor& dgate_up, QuantizedTensor& s, const Tensor& ds,
                         const FfnSaved& saved, const BlockWeights& w) const;

  const StepContext& step_;
  LinearRole gate_up_, down_;
  std::int64_t ffn_;
};

}  // namespace precbench
