// Forward and backward of the training step, written once for every device, recipe and rank count.
//
//   embedding; per block: norm, attention, norm, feed-forward network or experts; norm, lm_head, cross-entropy;
//   then backward in reverse order
//
// The parts are attention_layer.h, dense_ffn.h, moe_block.h and lm_head.h. All of them work on one
// StepContext. The residual stream and its gradient stay here: each half of a block gets its norm's output,
// and returns what the next norm adds.
//
// Forward saves a norm's output in the representation that wgrad reads: the columnwise FP8 copy if wgrad is
// quantized, the rowwise FP8 data that wgrad transposes (Recipe::flow), or the BF16 value. With
// recompute_norms the BF16 value is not saved and backward repeats the norm. SwiGLU's output is never saved.
// TransformerOptions::recompute drops parts of what a block saves, or all but the residual stream at its input;
// backward makes them again, each in the half of the block that reads it. A forward pass alone keeps only the
// residual stream from block to block.
//
// Ranks of tensor parallelism have some heads of attention, columns of the feed-forward network and tokens of the
// vocabulary, and with sequence parallelism some rows of the residual stream. A norm's output is gathered for the GEMMs
// behind it (norm.cpp), and what the last GEMM of a half writes is summed over the ranks and scattered
// (StepContext::sum_over_tensor); backward likewise.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "models/transformer/layers/attention_layer.h"
#include "models/transformer/layers/branch_output.h"
#include "models/transformer/layers/dense_ffn.h"
#include "models/transformer/layers/lm_head.h"
#include "models/transformer/layers/norm.h"
#include "models/transformer/layers/residual_gradient.h"
#include "models/transformer/layers/step_context.h"
#include "models/transformer/moe/moe_block.h"

namespace precbench {

class Transformer {
 public:
  Transformer(Device& device, Arena& arena, Parameters& parameters, const ModelConfig& config,
              const TransformerOptions& options);

  /// Runs forward and backward of one micro-step over tokens and their targets. `loss_scale` weights each
  /// token's loss (1 / all tokens of the optimizer step). Writes the sum of the tokens' losses in nats to
  /// loss_sum (f32 [1]); micro-step 0 overwrites it, later ones add. Gradient reductions over ranks are
  /// started but not finished: call parameters().complete(unit) before reading a gradient.
  void forward_backward(const Tensor& loss_sum, const Tokens& tokens, const Targets& targets,
                        float loss_scale, int micro_step);

  /// Runs forward only, with the training step's arithmetic. Writes every token's loss in nats to `losses`
  /// (f32 [M]). Needs no more memory than a training step with these or coarser formats. Call after
  /// parameters().begin_step().
  void forward(const Tensor& losses, const Tokens& tokens, const Targets& targets);

  /// Run forward only, as forward() does. The first writes the input of lm_head to `features` [M, width]; the
  /// second compares this transformer's outputs with those of BF16 `features` of the same weights and tokens
  /// (LmHead::compare).
  void forward_features(const Tensor& features, const Tokens& tokens);
  void compare_outputs(const Tensor& distances, const Tensor& features, const Tokens& tokens,
                       const Targets& targets);

  void set_quantization_observer(QuantizationObserver* observer) { step_.observer = observer; }

 private:
  /// Tensors that a block's forward saves for its backward.
  struct Saved {
    // Residual stream at the block's input and after attention, [stream_rows, width], and the norms' inputs in
    // KeptActivations::norm_input, which then stay in its place; x and mid are memory of all blocks.
    Tensor x, mid;
    GemmOperand norm1_input, norm2_input;
    NormSaved norm1, norm2;
    BranchSaved branch1, branch2;
    AttentionSaved attention;
    std::variant<FfnSaved, MoeSaved> ffn;
    bool selected = false;  // attention's output stays
  };
  /// Tensors that stay in memory after a block's forward: those for backward, or the block's input.
  enum class Keep : std::uint8_t { for_backward, block_input };

  /// Allocates what every block saves from forward to backward, also with recomputation.
  void push_saved(std::int64_t layer, Saved& saved);
  /// Allocates what selective recomputation keeps of a whole block.
  void push_selected(std::int64_t layer, Saved& saved);
  /// Allocates all that recomputation of a whole block writes again; saved.mid is mid_ if there is one.
  void push_whole(std::int64_t layer, Saved& saved);
  /// Allocates what only recomputation of a whole block drops; `mid` is used if it is not empty.
  void push_inner(std::int64_t layer, Saved& saved, const Tensor& mid);
  /// Allocate parts that --recompute norm and ffn drop; attention's is AttentionLayer::push_qkv().
  void push_norms(std::int64_t layer, Saved& saved);
  void push_ffn(std::int64_t layer, Saved& saved);
  /// Allocates what a block writes in forward. Returns the mark at which what backward repeats begins.
  Arena::Mark push_forward(std::int64_t layer, Saved& saved, Keep keep);
  /// Runs the forward pass up to the head, then head(residual stream, last block's output).
  void forward_to_head(const Tokens& tokens,
                       const std::function<void(const Tensor& mid, const Tensor& branch)>& head);
  /// Returns the factor of the embedded tokens, and of their gradient.
  double embedding_scale() const;
  /// x0_ = embedding rows of the tokens, plus learned positions. Prefetches the first block's weights.
  void embed(const Tokens& tokens);
  /// Takes over the documents of a micro-step's tokens.
  void set_documents(const Tokens& tokens);
  /// Calls visit(rows of x, rows of the table [learned_positions, C]) for each part of the sequence.
  void each_position(const Tensor& x, const Tensor& table,
                     const std::function<void(const Tensor& x, const Tensor& positions)>& visit) const;
  bool parallel() const { return step_.config.block.residual != Residual::sequential; }
  bool one_norm() const { return step_.config.block.residual == Residual::parallel_one_norm; }
  /// Return the norm of each half's input. With one norm for both, the second is the first with copies of its own.
  NormOutput first_norm(const Saved& saved, const BlockWeights& w) const;
  NormOutput second_norm(const Saved& saved, const BlockWeights& w) const;
  /// Returns a norm that makes `kept` in its own op if it can, else unchanged.
  NormOutput keeping(NormOutput norm, const GemmOperand& kept) const;
  /// Computes the stream and a norm of it as add_norm() does, or with `kept` the norm of the stream as that keeps it.
  void keep_and_norm(QuantizedTensor& h, const NormOutput& norm, const GemmOperand& kept, const Tensor& x,
                     const Tensor& branch);
  /// Returns a norm with its input as forward read it, in the caller's scope if it is `kept` quantized and the norm's
  /// backward does not read that.
  NormOutput read_back(NormOutput norm, const GemmOperand& kept);
  /// Returns true if norms and SwiGLU read their inputs as they are kept.
  bool keeps_norm_inputs() const { return step_.options.kept.norm_input.quantized(); }
  /// Allocates a block's tensors and runs its forward. `x`: the residual stream at its input without the
  /// previous block's output, which is in branch_.
  void forward_block(std::int64_t layer, Saved& saved, const Tensor& x, Keep keep);
  /// ForwardKind::recompute needs neither the first residual sum nor the output.
  void block_forward(std::int64_t layer, Saved& saved, const BlockWeights& w, const Tensor& x,
                     ForwardKind kind);
  void block_backward(std::int64_t layer, Saved& saved);
  /// Repeat the GEMM that reads a norm's output, with RoPE behind qkv, in memory of the half block's scope.
  void recompute_ffn(std::int64_t layer, Saved& saved, const BlockWeights& w);
  void recompute_qkv(std::int64_t layer, Saved& saved, const BlockWeights& w);
  /// Returns a norm's output as fprop reads it: the saved value, or that of repeating the norm. `moe`: experts
  /// that read it; null for a dense layer.
  QuantizedTensor norm_output(const Linear& linear, const NormOutput& norm, const MoeSaved* moe);
  /// Computes the input of the second half, `h`. Unless the residual is parallel, this adds the first half's output to the
  /// stream.
  void forward_second_norm(QuantizedTensor& h, const Saved& saved, const BlockWeights& w);
  /// Adds the output of a dense second half to branch_, or writes it there.
  void forward_second_output(std::int64_t layer, const Saved& saved, const BlockWeights& w);
  void ffn_backward(std::int64_t layer, Saved& saved, const BlockWeights& w, const BlockTensors& g,
                    QuantizedTensor& dmid);
  void attention_backward(std::int64_t layer, Saved& saved, const BlockWeights& w, const BlockTensors& g,
                          const QuantizedTensor& dmid);
  /// Returns the buffer of the gradient between a block's halves.
  QuantizedTensor push_dmid(std::int64_t layer);

  StepContext step_;
  AttentionLayer attention_;
  DenseFfn dense_ffn_;
  BranchOutput branch_output_;
  MoeBlock moe_;
  LmHead head_;
  ResidualGradient residual_gradient_;

  Tensor x0_;  // the embedded tokens
  // Forward: a half-block's output until the next norm adds it, the sum of both if they are parallel. Backward:
  // gradient between a block's halves, or with one norm for both the part of its output's gradient.
  Tensor branch_;
  Tensor mid_;     // residual stream between a block's halves, shared by all blocks unless each saves its own
  Tensor losses_;  // f32 [M]
  std::vector<Saved> saved_;
};

}  // namespace precbench
