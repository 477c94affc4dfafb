// Mixture of experts in place of a block's SwiGLU.
//
//   route      z = h Wr^T; each token's experts and routing weights
//   group      assigns rows to experts
//   experts    permute, gate_up, SwiGLU times the routing weight, down
//   unpermute  sums a token's slots and adds the shared expert's output (a SwiGLU over all tokens)
//
// Forward saves the routing and gate_up. Backward makes X's columnwise copy again, from the norm's output or
// from its rowwise data if wgrad transposes it. With expert parallelism rows come from all ranks of a group
// and return to them (expert_exchange.h); the shared expert computes while they are in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "models/transformer/layers/dense_ffn.h"
#include "models/transformer/layers/norm.h"
#include "models/transformer/layers/step_context.h"
#include "models/transformer/moe/expert_exchange.h"
#include "models/transformer/moe/expert_linear.h"

namespace precbench {

struct MoeSaved {
  SavedRouting routing;
  Tensor gate_up;      ///< [rows_capacity, 2 expert_ffn]
  Tensor swiglu_amax;  ///< f32 [1], if SwiGLU's output has one scale per tensor
  /// Expert weights for dgrad; empty: dgrad quantizes them itself.
  GemmOperand gate_up_columns, down_columns;
  FfnSaved shared;  ///< of the shared expert
  /// With a gate on the shared expert, also with recomputation: its output before the gate [M, width], and the gate,
  /// f32 [M].
  Tensor shared_raw, shared_gate;
};

class MoeBlock {
 public:
  explicit MoeBlock(const StepContext& step);

  /// Returns the role whose delayed-scaling slot the norm's output uses. Experts with weighted input have a
  /// slot of their own, so the norm then uses the shared expert's, even in a model without one.
  LinearRole norm_role() const { return weights_input() ? LinearRole::shared_gate_up : LinearRole::gate_up; }

  /// Allocates what is saved also with recomputation: the routing and SwiGLU's amaxes.
  void push_saved(std::int64_t layer, MoeSaved& saved) const;
  /// Allocates what recomputation writes again.
  void push_inner(std::int64_t layer, MoeSaved& saved) const;
  /// Completes the norm's output, allocated for norm_role(), before the norm writes it.
  void prepare_input(const MoeSaved& saved, QuantizedTensor& h) const;

  /// Computes the output [M, width] from h, the norm's output.
  void forward(std::int64_t layer, MoeSaved& saved, const BlockWeights& w, const QuantizedTensor& h,
               const Tensor& out, ForwardKind kind) const;
  /// Returns the gradient of the norm's output. `dy`: gradient of the output. The result and further
  /// temporaries are freed by the caller's scope.
  Tensor backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w, const BlockTensors& g,
                  const QuantizedTensor& dy, const NormOutput& norm) const;

 private:
  ExpertLinear experts(std::int64_t layer, LinearRole role) const;
  /// Returns the elements of this rank's experts of a vector of all experts' biases.
  Tensor own_part(const Tensor& biases) const;
  bool weights_input() const { return step_.config.moe.weight_at == WeightAt::input; }
  float swiglu_limit() const { return static_cast<float>(step_.config.moe.swiglu_limit); }
  bool has_shared() const { return step_.config.moe.shared_ffn > 0; }
  /// Return the maximum number of rows of one expert and of all experts of this rank.
  std::int64_t max_expert_rows() const;
  std::int64_t max_rows() const;
  Tensor push_rows(const Groups& groups, std::int64_t cols) const {
    return step_.push(step_.options.activations, groups.rows_capacity(), cols);
  }

  // Routing
  void push_routing(std::int64_t layer, SavedRouting& saved) const;
  void route(std::int64_t layer, SavedRouting& saved, const BlockWeights& w, const Tensor& h) const;
  /// Returns the expert of each slot, or -1 for slots beyond the capacity, before anything is sent. `report`:
  /// as in ops::Group.
  Tensor drop_beyond_capacity(const Tensor& index, const Tensor& report) const;
  /// Computes dx [M, width] from the routing weights' gradient dw and adds `addend`; writes the router's
  /// weight gradient.
  void route_backward(const SavedRouting& routing, const BlockWeights& w, const BlockTensors& g,
                      const Tensor& dx, const Tensor& dw, const Tensor& h, const Tensor& addend) const;

  // Grouped rows
  bool shares_amaxes() const { return step_.options.reduce_amax != AmaxGroup::own; }
  /// produce_quantized() for grouped rows. Runs op(x) twice if an amax must be exchanged: amax, then
  /// quantization.
  void produce_grouped(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op) const;
  /// Returns x, made by produce_quantized(), with its all-reduced amax as the known amax.
  QuantizedTensor with_shared_amax(QuantizedTensor x) const;
  /// Permutes token rows into expert groups. Tokens without a BF16 value yield no value. Unweighted rows
  /// inherit a known scale of the tokens.
  void permute_rows(QuantizedTensor& x, const QuantizedTensor& tokens, const Tensor& weights,
                    const Groups& groups) const;
  /// Permutes the tokens' rowwise data of X or dY for wgrad to transpose. Weighted rows are quantized again.
  QuantizedTensor permute_quantized(std::int64_t layer, LinearRole role, LinearOperand operand,
                                    const QuantizedTensor& tokens, const Tensor& weights,
                                    const Groups& groups) const;

  // Halves of forward and backward
  void forward_up(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                  const QuantizedTensor& h) const;
  void forward_down(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w, const Tensor& h,
                    const Tensor& out) const;
  /// Backward of the routed experts: writes dw, their weight gradients, and the gradient of their input rows,
  /// `drows`. h: the norm's output.
  void experts_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                        const BlockTensors& g, const QuantizedTensor& dy, const NormOutput& h,
                        const Tensor& dw, const Tensor& drows) const;
  /// Writes the gradient of gate_up with its quantized copies, and dw unless the input is weighted.
  void down_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w, const BlockTensors& g,
                     const QuantizedTensor& dy, QuantizedTensor& dgate_up, const Tensor& dw) const;
  void gate_up_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                        const BlockTensors& g, const QuantizedTensor& dgate_up, const NormOutput& h,
                        const Tensor& drows) const;
  /// Writes an expert weight's gradient and, if experts have a unit of their own, starts its reduction.
  void expert_wgrad(std::int64_t layer, LinearRole role, const BlockTensors& g, const QuantizedTensor& dy,
                    const QuantizedTensor& x, const Groups& groups) const;
  /// Return the router's rows of a weight or gradient, and the row of the shared expert's gate.
  Tensor router_of(const Tensor& matrix) const { return matrix.slice_rows(0, step_.config.moe.rule.experts); }
  Tensor gate_of(const Tensor& matrix) const { return matrix.slice_rows(step_.config.moe.rule.experts, 1); }
  /// Returns the output of the shared expert.
  Tensor shared_output(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                       const Tensor& h) const;
  /// Returns the gradient of the shared expert's output before its gate, and computes dz, the gradient of the gate's
  /// argument, and that of its weight.
  QuantizedTensor gate_backward(std::int64_t layer, const MoeSaved& saved, const BlockTensors& g,
                                const QuantizedTensor& dy, const Tensor& h, const Tensor& dz) const;
  Tensor shared_backward(std::int64_t layer, const MoeSaved& saved, const BlockWeights& w,
                         const BlockTensors& g, const QuantizedTensor& dy, const NormOutput& norm) const;

  const StepContext& step_;
  std::unique_ptr<ExpertExchange> exchange_;
  DenseFfn shared_;
};

/// Drops the columnwise expert weights of a forward pass whose backward, if any, makes its own.
inline void leave_weight_columns(MoeSaved& saved) { saved.gate_up_columns = saved.down_columns = {}; }

}  // namespace precbench
