// The head: final norm, lm_head and loss, forward and backward. Logits are computed in chunks of tokens, so
// that they are never in memory whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/transformer/layers/norm.h"
#include "models/transformer/layers/step_context.h"

namespace precbench {

/// Maximum tokens per chunk of the head. A quantized head runs as a single chunk because its scales may span
/// all tokens.
inline constexpr std::int64_t kHeadChunkTokens = 2048;

/// Maximum tokens per chunk of a comparison of outputs, which has two sets of FP32 logits.
inline constexpr std::int64_t kCompareChunkTokens = 512;

/// Tokens that M positions are to predict.
struct Targets {
  Tensor tokens;        ///< i32 [M]
  Tensor weights = {};  ///< f32 [M]: factor of each position's loss; empty: 1 each

  Targets slice_rows(std::int64_t first, std::int64_t rows) const {
    return {tokens.slice_rows(first, rows), weights.empty() ? Tensor{} : weights.slice_rows(first, rows)};
  }
};

class LmHead {
 public:
  explicit LmHead(const StepContext& step) : step_(step) {}

  struct Input {
    /// Residual stream [stream_rows, width] before the last block's output, and that output.
    Tensor mid, branch;
    Targets targets;
  };

  /// Writes every token's loss in nats, times its weight, to `losses` (f32 [M]). Allocates in the caller's scope.
  void forward(const Input& input, const Tensor& losses) const;
  /// Runs forward and backward of one micro-step. Writes `losses` as forward() does, and their sum to loss_sum
  /// (f32 [1]), to which later micro-steps add; of tensor ranks each sums its rows of the residual stream. Writes the
  /// stream's gradient to `dx`. Starts the reduction of the head's unit, unless the embedding shares it.
  void forward_backward(const Input& input, const Tensor& losses, const Tensor& loss_sum,
                        QuantizedTensor dx) const;

  /// Writes the normed input of lm_head to `features` [M, width]. Allocates in the caller's scope.
  void write_features(const Input& input, const Tensor& features) const;
  /// Compares the next-token distributions with those of `features` and a BF16 lm_head; writes `distances`
  /// (f32 [M, 2], ops::CompareLogits). All logits are FP32, so that their rounding does not hide a small
  /// distance.
  void compare(const Input& input, const Tensor& features, const Tensor& distances) const;

 private:
  /// State shared by the chunks: lm_head with its bias (may be empty), and its input.
  struct Pass {
    Linear linear;
    Weight weight;
    NormOutput norm;  ///< of the residual stream, which it sums
    Tensor normed, bias;
  };
  Pass begin(const Input& input) const;
  /// Quantizes the chunk from token `first` of `rows` tokens as lm_head's X.
  QuantizedTensor quantize_chunk(const Pass& pass, std::int64_t first, std::int64_t rows) const;
  std::int64_t chunk_tokens(const Pass& pass) const {
    return pass.linear.recipe().quantized() ? step_.M : std::min(step_.M, kHeadChunkTokens);
  }
  /// Runs the chunk from token `first`: fills its losses and overwrites the logits with their gradient, which
  /// it returns. `x` receives the chunk's input.
  QuantizedTensor forward_chunk(const Pass& pass, std::int64_t first, const Tensor& losses,
                                const Targets& targets, float loss_scale, QuantizedTensor& x) const;

  /// Runs ops::CrossEntropy; over tensor ranks with their parts of the vocabulary.
  void cross_entropy(const ops::CrossEntropy& op) const;
  /// Returns where the gradients of a frozen final norm go.
  NormWeights discarded_gradients(const NormWeights& weights) const;

  const StepContext& step_;
};

}  // namespace precbench
