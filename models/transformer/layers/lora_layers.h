// Adapters of the blocks' linear layers in a step (models/transformer/state/lora.h). Their GEMMs are BF16 whatever
// the recipe of the frozen layer, as the activations are (FP32 in the FP32 reference model):
//
//   forward   u = s x A^T;  y += u B^T            s = alpha / rank
//   backward  du = s dy B;  dx += du A;           dB = dy^T u;  dA = du^T x
//
// The parts of a matrix (q, k, v; gate, up) read the same x and write adjacent columns of y, so their adapters run as
// one: A is stacked, and B is block-diagonal, which adds zeros. Those are few: B has parts * rank columns.
#pragma once

#include <cstdint>
#include <vector>

#include "models/transformer/layers/step_context.h"

namespace precbench {

class LoraLayers {
 public:
  explicit LoraLayers(const StepContext& step);

  /// Allocates what all blocks share in the backward pass of a micro-step.
  void push_shared();
  /// Allocates u of a block's linear layers, which forward saves, also with recomputation.
  void push_saved(std::int64_t layer);

  /// y += the adapters' output. `x`: the layer's input [M, in].
  void fprop(std::int64_t layer, LinearRole role, const Tensor& y, const Tensor& x);
  /// dx += the gradient through the adapters. `dy`: gradient of the layer's output [M, out].
  void dgrad(std::int64_t layer, LinearRole role, const Tensor& dx, const Tensor& dy);
  /// Computes the adapters' gradients.
  void wgrad(std::int64_t layer, LinearRole role, const Tensor& dy, const Tensor& x);

 private:
  const LoraMatrices& matrices(std::int64_t layer, LinearRole role) const;
  /// Returns A of all parts, [parts * rank, in].
  static Tensor a_of(const LoraMatrices& m, const Tensor& unit);
  /// Returns B of one part, [out, rank].
  static Tensor b_of(const LoraMatrices& m, std::size_t part, const Tensor& unit);
  Tensor weights(std::int64_t layer) const;
  /// Returns B of all parts as one matrix [out, parts * rank], in the arena's stack unless it is one part's.
  Tensor whole_b(std::int64_t layer, const LoraMatrices& m) const;
  /// Returns du. dgrad and wgrad of a layer follow each other, and the second finds that of the first.
  Tensor inner_gradient(std::int64_t layer, LinearRole role, const Tensor& dy);

  const StepContext& step_;
  const double scale_;
  std::vector<Tensor> inner_[kAllLinearRoles];  // u by layer
  Tensor inner_gradient_;                       // [M, most columns of any u]
  std::int64_t layer_ = -1;                     // whose du is in inner_gradient_; -1: none
  LinearRole role_ = LinearRole::qkv;
};

}  // namespace precbench
