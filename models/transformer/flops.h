// Model FLOPs of one training step, in closed form. They count the necessary work, not what a device repeats
// or adds (recompute, quantization), so that rates derived from them are comparable across recipes.
//
//   per token = 6 (L P_layer + V C) + 6 L s H D
//
// 6 is two FLOPs per multiply-add times three GEMMs (forward, dX, dW). P_layer is the number of linear
// weights of a block; of experts only the activated ones, without the router, which published counts omit
// too. V C is the head, tied or not; the embedding is a lookup. With latent attention D is half the sum of the
// widths of keys and of values. Full attention (QK^T and PV) takes 12 L s H D, of which a causal mask needs half.
// A layer with a window of w < s tokens needs 6 (s - w)^2 H D / s less. Norms, RoPE, SwiGLU, softmax and the
// optimizer are not counted, as is customary.
//
// Packed documents attend within each document: the attention of a layer is that of whole sequences times
// PackedLengths::visible. Linear layers count every position, also padding.
//
// Frozen weights (LoRA) have no dW: 4 instead of 6 for P_layer and V C, and 6 for every element of an adapter.
#pragma once

#include <cstdint>

#include "models/config/config.h"
#include "models/transformer/layers/packed_lengths.h"

namespace precbench {

/// Convention of a FLOP count. A rate must name it: for Llama 3.1 8B at s = 8192 the conventions differ by 13%. Records
/// hold `causal` only.
enum class FlopConvention : std::uint8_t {
  causal,  ///< the formula above, as in Megatron-Bridge, but for its padded vocabulary
  /// Attention of a query to all min(s, w) tokens of its window, without a mask, and weights of norms and routers
  /// counted like linear weights: torchtitan since August 2026 (pytorch/torchtitan#4300). Before, it ignored windows.
  torchtitan,
};
const char* name_of(FlopConvention convention);

/// FLOPs per token of a training step, by kind.
struct FlopCount {
  std::int64_t gemm = 0;       ///< linear layers of the blocks, which a recipe converts
  std::int64_t head = 0;       ///< lm_head
  std::int64_t attention = 0;  ///< QK^T and PV

  std::int64_t total() const { return gemm + head + attention; }
};

/// Returns the FLOPs per token at sequence length `seq`. `lora_rank`: of adapters (lora.h), 0 without. `packed`: the
/// documents of packed sequences, which only the causal convention counts; null: a sequence is one document.
FlopCount flops_per_token(const ModelConfig& config, std::int64_t seq,
                          FlopConvention convention = FlopConvention::causal, std::int64_t lora_rank = 0,
                          const PackedLengths* packed = nullptr);

}  // namespace precbench
