// The ops of a dense model's layers: embedding, norms, RoPE, attention, activation functions, the head's loss. Conventions are
// those of ops.h, their costs are in ops.cpp.
#pragma once

#include "kernels/device/operands.h"

namespace precbench {
struct OpCost;
}  // namespace precbench

namespace precbench::ops {

/// x[M,C] = table[tokens[M]]; tokens i32. The table has the rows of tokens from `first` on; rows of x for tokens
/// without a row are 0.
struct Embedding {
  Tensor x, tokens, table;
  std::int64_t first = 0;
  OpCost cost() const;
};

/// dtable[V,C] += dx[M,C] scattered by token, in token order (deterministic); dtable f32 or bf16. Tokens outside
/// [first, first + V) have no row.
struct EmbeddingBackward {
  Tensor dtable, dx, tokens;
  std::int64_t first = 0;
  OpCost cost() const;
};

/// sum = x + branch, rstd = 1 / rms(sum), h = sum * rstd * (weight + gain_offset).
struct AddRmsnorm {
  QuantizedTensor h;
  Tensor sum;   ///< [M, C]; without a branch it is x, and is not written
  Tensor rstd;  ///< f32 [M]
  Tensor x, branch;
  Tensor weight;  ///< [C]
  float eps;
  float gain_offset = 0;  ///< 1: Gemma's weights are the gains minus 1
  /// Written if given: sum in a format of keeps_directly(), whose dequantized values rstd and h are then computed from.
  GemmOperand kept = {};
  OpCost cost() const;
};

/// Recomputes h from a saved sum and rstd, with the bits that AddRmsnorm wrote.
struct RecomputeRmsnorm {
  QuantizedTensor h;
  Tensor sum, rstd, weight;
  float gain_offset = 0;
  OpCost cost() const;
};

/// dx = dresidual + the gradient through the norm.
struct RmsnormBackward {
  QuantizedTensor dx;
  Tensor dweight;    ///< [C], f32 or bf16
  bool accumulate;   ///< dweight += instead of =
  Tensor dresidual;  ///< may be empty
  Tensor dh, x, rstd, weight;
  float gain_offset = 0;
  GemmOperand kept = {};  ///< read in place of x if AddRmsnorm wrote it
  OpCost cost() const;
};

/// sum = x + branch, the mean and 1 / standard deviation of its rows (of the variance plus eps), and
/// h = (sum - mean) * rstd * (weight + gain_offset) + bias.
struct AddLayernorm {
  QuantizedTensor h;
  Tensor sum;         ///< [M, C]; without a branch it is x, and is not written
  Tensor mean, rstd;  ///< f32 [M]
  Tensor x, branch;
  Tensor weight, bias;  ///< [C]; bias may be empty
  float eps;
  float gain_offset = 0;  ///< 1: Nemotron's weights are the gains minus 1
  OpCost cost() const;
};

/// Recomputes h from a saved sum, mean and rstd, with the bits that AddLayernorm wrote.
struct RecomputeLayernorm {
  QuantizedTensor h;
  Tensor sum, mean, rstd, weight, bias;
  float gain_offset = 0;
  OpCost cost() const;
};

/// dx = dresidual + the gradient through the norm.
struct LayernormBackward {
  QuantizedTensor dx;
  Tensor dweight, dbias;  ///< [C], f32 or bf16; dbias is empty without a bias
  bool accumulate;        ///< dweight and dbias += instead of =
  Tensor dresidual;       ///< may be empty
  Tensor dh, x, mean, rstd, weight;
  float gain_offset = 0;
  OpCost cost() const;
};

/// out = rope(norm(qkv + bias)) on the q and k heads, v + bias; out may be qkv itself without QK-norm.
struct Rope {
  Tensor out, qkv;  ///< [M, qkv_width]
  RopeOptions options;
  OpCost cost() const;
};

struct RopeBackward {
  QuantizedTensor dqkv;     ///< [M, qkv_width]
  Tensor dq_norm, dk_norm;  ///< as wide as the gains; empty without QK-norm
  bool accumulate;          ///< dq_norm and dk_norm += instead of =
  Tensor dout;              ///< [M, qkv_width]
  Tensor qkv;               ///< the unrotated input, read only with QK-norm
  RopeOptions options;
  OpCost cost() const;
};

/// qkv = [q | k | v] for attention. q: heads of [nope | rope] in the first columns of `q`, times q_scale, with RoPE. A
/// key is its head's nope elements in kv_up, then the row's one key of rope elements in the last columns of `latent`, with
/// RoPE. kv_up has heads of [nope of the key | value].
struct LatentHeads {
  Tensor qkv;     ///< [M, qkv_width]
  Tensor q;       ///< [M, q_width or more]
  Tensor kv_up;   ///< [M, kv_up_width]
  Tensor latent;  ///< [M, rope_dim or more]
  LatentHeadsOptions options;
  OpCost cost() const;
};

/// Gradients of LatentHeads' inputs, in the same columns; other columns stay. The gradient of the shared key is the sum
/// over the heads, in their order.
struct LatentHeadsBackward {
  Tensor dq, dkv_up, dlatent;
  Tensor dqkv;  ///< [M, qkv_width]
  LatentHeadsOptions options;
  OpCost cost() const;
};

/// x[M,N] += bias[P,N], whose row r mod P is added to row r: P is 1 for a bias, and the sequence's length for
/// positions. x f32 or bf16. With weights row r gets weights[r] times the bias.
struct AddBias {
  Tensor x, bias;
  Tensor weights = {};  ///< f32 [M, 1], or empty
  OpCost cost() const;
};

/// gate[m] = sigmoid(x[m] . w), y[m] = gate[m] raw[m]: the gate of Qwen2's shared expert.
struct GateRows {
  Tensor y;          ///< [M, N]
  Tensor gate;       ///< f32 [M, 1]
  Tensor raw, x, w;  ///< [M, N], [M, C], [1, C]
  OpCost cost() const;
};

/// draw = gate * dy, and dz, the gradient of x . w.
struct GateRowsBackward {
  Tensor draw;     ///< [M, N]
  Tensor dz;       ///< f32 [M, 1]
  Tensor dy, raw;  ///< [M, N]
  Tensor gate;     ///< f32 [M, 1]
  OpCost cost() const;
};

/// dbias[P,N] = or += the sum over the rows of dy[M,N] that AddBias adds each row to, with weights times their own, in
/// a fixed order; dbias f32 or bf16. Weights are for P = 1.
struct BiasBackward {
  Tensor dbias;
  bool accumulate;
  Tensor dy;
  Tensor weights = {};  ///< f32 [M, 1], or empty
  OpCost cost() const;
};

/// Causal softmax(q k^T / sqrt(head_dim)) v, in a window and with soft-capped scores if the shape says so, and within
/// documents. A query that sees no key gives 0, with lse -inf. On the CPU, keys that a query does not see never affect it, nor does it
/// affect their gradients. On a GPU, NaN and Inf do within a tile: such a key gets weight 0 in a whole-tile GEMM, and
/// 0 * NaN or 0 * Inf is NaN.
struct Attention {
  QuantizedTensor out;  ///< [M, out_width]
  Tensor lse;           ///< f32 [heads, M]: log sum exp of the scaled scores, index (b * heads + h) * T + t
  Tensor qkv;           ///< [M, qkv_width]; with kv only q is read
  AttentionShape shape;
  Tensor kv = {};  ///< [B * keys, kv_width]: separate keys and values; empty: those of qkv
  DocumentMask documents = {};
  OpCost cost() const;
};

struct AttentionBackward {
  Tensor dqkv;  ///< [M, qkv_width]; with kv only dq is written
  Tensor dout, out, lse, qkv;
  AttentionShape shape;
  Tensor kv = {};   ///< as in Attention
  Tensor dkv = {};  ///< [B * keys, kv_width]; given with kv
  DocumentMask documents = {};
  OpCost cost() const;
};

/// Lets a logit per head, the sink, take part in the softmax that Attention has computed without it:
/// out *= sigmoid(lse - sink), lse = log(exp(lse) + exp(sink)). AttentionBackward then takes both as they are.
struct AttentionSink {
  Tensor out, lse;  ///< as in Attention; changed in place
  Tensor sink;      ///< [1, heads]
  AttentionShape shape;
  OpCost cost() const;
};

/// Merges attention over one part of the keys into that over others: each has its share of
/// exp(new_lse) = exp(lse) + exp(part_lse). A row that sees no key of the part stays; `lse` is finite.
struct MergeAttention {
  Tensor out;   ///< f32 [M, out_width]; changed in place
  Tensor lse;   ///< f32, as in Attention; changed in place
  Tensor part;  ///< [M, out_width]: over the other keys
  Tensor part_lse;
  AttentionShape shape;
  OpCost cost() const;
};

/// dsink = or += - the sum over a head's queries of exp(sink - lse) * dot(dout, out), in a fixed order.
struct AttentionSinkBackward {
  Tensor dsink;  ///< [1, heads], f32 or bf16
  bool accumulate;
  Tensor dout, out, lse;  ///< out and lse from AttentionSink
  Tensor sink;
  AttentionShape shape;
  OpCost cost() const;
};

/// s[M,F] = activation(gate) * up, gate_up[M, 2F] = [gate | up].
struct Swiglu {
  QuantizedTensor s;
  Tensor gate_up;
  Activation activation = Activation::silu;
  /// Written if given: gate_up in a format of keeps_directly(), whose dequantized values s is then computed from.
  GemmOperand kept = {};
  OpCost cost() const;
};

/// Computes dgate_up from ds, and s again for wgrad, value and requested copies; without s if both are empty and
/// keep_value is false.
struct SwigluBackward {
  QuantizedTensor dgate_up, s;
  Tensor ds, gate_up;
  Activation activation = Activation::silu;
  GemmOperand kept = {};  ///< read in place of gate_up if Swiglu wrote it
  OpCost cost() const;
};

/// s[M,F] = activation(z + bias), of a non-gated feed-forward network.
struct Activate {
  QuantizedTensor s;
  Tensor z;     ///< [M, F]
  Tensor bias;  ///< [F]; may be empty
  Activation activation = Activation::gelu;
  OpCost cost() const;
};

/// Computes dz from ds, and s again as SwigluBackward does.
struct ActivateBackward {
  QuantizedTensor dz, s;
  Tensor ds, z, bias;
  Activation activation = Activation::gelu;
  OpCost cost() const;
};

/// loss[M] f32 = -log softmax(logits)[target] in nats; logits become dlogits = (softmax - onehot) * scale. With a
/// softcap the softmax is that of softcap tanh(logits / softcap). With `weights`, f32 [M], a row's loss and gradient
/// are multiplied by its weight.
struct CrossEntropy {
  Tensor loss, logits, targets;
  float scale;
  float softcap = 0;  ///< 0: none
  Tensor weights = {};
  OpCost cost() const;
};

/// Cross-entropy over a vocabulary that several ranks divide, in two ops. First each rank's part of every row:
/// stats f32 [M, 3] = the largest of its logits [M, V], the sum of e^(logit - largest), and the target's logit; -inf
/// if the target is not among the tokens from `first` on that this rank has.
struct LogitStats {
  Tensor stats, logits, targets;
  std::int64_t first;
  float softcap = 0;  ///< 0: none
  OpCost cost() const;
};

/// Then what CrossEntropy writes, from the stats of all ranks in rank order, f32 [ranks, M, 3]: the loss is that of the
/// whole vocabulary, the gradient that of this rank's logits.
struct LogitGradient {
  Tensor loss, logits, targets, stats;
  std::int64_t first;
  float scale;
  float softcap = 0;
  Tensor weights = {};
  OpCost cost() const;
};

/// out f32 [M, 2]: for each row, how far the next-token distribution of `logits` is from that of `reference`,
/// nats: the difference of the target's log-probability, and the divergence KL(reference || logits). Logits
/// f32 or bf16 [M, V], of equal dtype; sums are FP64.
struct CompareLogits {
  Tensor out, reference, logits, targets;
  float softcap = 0;  ///< of both, as in CrossEntropy
  OpCost cost() const;
};

/// out[0] = or += sum of x (f32), in a fixed order.
struct Sum {
  Tensor out, x;
  bool accumulate;
  OpCost cost() const;
};

}  // namespace precbench::ops
