// The head: final norm, lm_head and loss, forward and backward. Logits are computed in chunks of tokens, so
// that they are never in memory whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/transformer/layers/step_context.h"

namespace precbench {

/// Maximum tokens per chunk of the head. A quantized head runs as a single chunk because its scales may span
/// all tokens.
inline constexpr std::int64_t kHeadChunkTokens = 2048;

class LmHead {
 public:
  explicit LmHead(const StepContext& step) : step_(step) {}

  struct Input {
    Tensor mid, branch;  ///< residual stream [M, width] before the last block's output, and that output
    Tensor targets;      ///< i32 [M]
  };

  /// Writes every token's loss in nats to `losses` (f32 [M]). Allocates in the caller's scope.
  void forward(const Input& input, const Tensor& losses) const;
  /// Runs forward and backward of one micro-step. Writes `losses` as forward() does, and their sum to
  /// loss_sum (f32 [1]), to which later micro-steps add. Writes the residual stream's gradient to `dx`.
  /// Starts the reduction of the head's unit, unless the embedding shares it.
  void forward_backward(const Input& input, const Tensor& losses, const Tensor& loss_sum,
                        QuantizedTensor dx) const;

 private:
  /// State shared by the chunks: lm_head, the residual stream at its input and its norm.
  struct Pass {
    Linear linear;
    Weight weight;
    Tensor gain, x, rstd, normed;
  };
  Pass begin(const Input& input) const;
  std::int64_t chunk_tokens(const Pass& pass) const {
    return pass.linear.recipe().quantized() ? step_.M : std::min(step_.M, kHeadChunkTokens);
  }
  /// Runs the chunk from token `first`: fills its losses and overwrites the logits with their gradient, which
  /// it returns. `x` receives the chunk's input.
  QuantizedTensor forward_chunk(const Pass& pass, std::int64_t first, const Tensor& losses,
                                const Tensor& targets, float loss_scale, QuantizedTensor& x) const;

  const StepContext& step_;
};

}  // namespace precbench
