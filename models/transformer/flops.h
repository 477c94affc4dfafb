// Model FLOPs of one training step, in closed form. They count the work a step must do, never what a device
// happens to repeat (recompute, quantization), so that a rate derived from them compares across recipes.
//
//   per token = 6 (L P_layer + V C) + 6 L s H D
//
// 6 is two FLOPs per multiply-add, times three products (forward, dX, dW). P_layer: the linear weights of one
// block; of experts those that a token goes to, without the router, which no published count has. V C: the head,
// tied or not; the embedding is a lookup. Attention is QK^T and PV, 12 L s H D in full,
// of which a causal mask needs half. Norms, RoPE, SwiGLU, softmax and the optimizer are left out, as
// everywhere in the field.
#pragma once

#include <cstdint>

#include "models/config/config.h"

namespace precbench {

/// How FLOPs are counted. A rate without the name of its convention means nothing: at s = 8192 these differ
/// by 12%.
enum class FlopConvention : std::uint8_t {
  causal,      ///< the formula above; NVIDIA's published Llama rows follow it
  torchtitan,  ///< attention in full, and norm weights counted as if they were linear weights
};
const char* name_of(FlopConvention convention);

/// FLOPs per token of a training step, by kind.
struct FlopCount {
  std::int64_t gemm = 0;       ///< the linear layers of the blocks: what a recipe converts
  std::int64_t head = 0;       ///< lm_head
  std::int64_t attention = 0;  ///< QK^T and PV

  std::int64_t total() const { return gemm + head + attention; }
};

/// seq: tokens per sequence, s.
FlopCount flops_per_token(const ModelConfig& config, std::int64_t seq,
                          FlopConvention convention = FlopConvention::causal);

}  // namespace precbench
