// The ops: everything a training step asks of a device, each a struct of its arguments with its cost; the optimizers' are
// in update_ops.h, those of a mixture of experts in moe_ops.h. The costs stand in ops.cpp and moe_ops.cpp, the bodies in
// kernels/cpu and kernels/cuda.
//
// A new op is a struct here, its cost() in ops.cpp, a line in PRECBENCH_OPS below, and for each device that has it a line
// in the device's header and a body. Device makes the rest: accounting, the refusal where there is no body, the dry run.
//
// Destinations come first, then sources, then shapes and constants. Matrices are row-major; M counts tokens (B sequences
// of T); activations are BF16. Unless said otherwise an op reads BF16, computes in FP32 and rounds once to BF16.
#pragma once

#include <cstdint>

#include "kernels/device/moe_ops.h"
#include "kernels/device/operands.h"
#include "kernels/device/update_ops.h"

namespace precbench {

/// What one op call must do at least: the speed of light of a step is the sum over its ops.
struct OpCost {
  const char* name = "";
  OpClass op_class = OpClass::other;
  double flops = 0;          ///< matrix multiply-adds, counted as 2
  double bytes = 0;          ///< each input read once, each output written once
  DType math = DType::bf16;  ///< whose peak applies: e4m3 for FP8 GEMMs, e2m1 for FP4's
  int casts = 0;             ///< quantized forms of activations and gradients that are made of values
};

}  // namespace precbench

namespace precbench::ops {

// ---- movement

struct Zero {
  Tensor x;
  OpCost cost() const;
};

/// dst = src, converted between f32 and bf16 (RNE) or copied bit for bit; equal sizes.
struct Convert {
  Tensor dst, src;
  OpCost cost() const;
};

/// dst += src (f32 or bf16 each); equal sizes.
struct Add {
  Tensor dst, src;
  OpCost cost() const;
};

/// x[i] = std * z(seed, first_index + i), z nearly normal (Irwin-Hall of 8), bit-identical on every device.
struct InitNormal {
  Tensor x;
  float std;
  std::uint64_t seed;
  std::int64_t first_index;
  OpCost cost() const;
};

struct Fill {
  Tensor x;
  float value;
  OpCost cost() const;
};

// ---- linear layers

/// Writes the wanted forms of `x`, and x.amax_out where present, from x.value.
struct Quantize {
  QuantizedTensor x;
  bool weight = false;  ///< of a weight: no cast that is counted
  OpCost cost() const;
  /// Nothing is wanted: the call is no op.
  bool idle() const;
};

/// dst = what the codes of a form stand for; dst BF16 [rows, k]. Exact of FP4, and of FP8 under powers of two.
struct Dequantize {
  Tensor dst;
  GemmOperand form;
  OpCost cost() const;
};

/// dst = or += src turned back from the transform that the FP4 form `form` had, whose signs are not random. With `value`, of
/// which the form was made with quest scales, elements that its cast clipped are 0 before. All [rows, k], form's order.
struct TurnBack {
  Tensor dst;  ///< bf16 or f32
  bool accumulate;
  Tensor src;    ///< bf16 or f32
  Tensor value;  ///< may be empty
  GemmOperand form;
  OpCost cost() const;
};

/// D[M,N] = A[M,k] B[N,k]^T into BF16 or FP32. On the CPU an element's bits depend on its rows of A and B alone.
struct Matmul {
  Tensor d;
  GemmOperand a, b;
  MatmulOptions options = {};
  OpCost cost() const;
};

// ---- weights that ranks exchange in FP8

/// out[0] = max |x|, NaN where x has one, 0 without elements; out f32, x f32 or bf16.
struct Amax {
  Tensor out, x;
  OpCost cost() const;
};

/// One rank's part of a matrix that has one scale: form.data = value * scale, and form.scale. The scale comes from
/// `amax`, f32 [1], alone. value f32 or bf16, as many elements as form.data, possibly none.
struct QuantizeWithAmax {
  GemmOperand form;
  Tensor value, amax;
  OpCost cost() const;
};

/// The end of a step with delayed scaling, slot by slot. a = staged[slot], which becomes 0. Where a is above 0 and
/// finite, known[slot] = a with `most_recent`, else the maximum of a and the slot's history, which then moves on: its
/// first entry leaves, a is its last.
struct UpdateHistory {
  Tensor known;    ///< f32 [1, slots]
  Tensor history;  ///< f32 [slots, steps kept], oldest first; may be empty
  Tensor staged;   ///< f32 [1, slots]
  bool most_recent;
  OpCost cost() const;
};

/// dst[k, rows] = src[rows, k] with its scales, which belong to the tensor or to 128x128 blocks: weights in fprop's form
/// then serve dgrad. rows and k are multiples of 16.
struct Transpose {
  GemmOperand dst, src;
  OpCost cost() const;
};

/// dst[r, first + c] = src[r, c], or, where src is the wider one, dst[r, c] = src[r, first + c]; of one dtype of whole bytes.
struct CopyColumns {
  Tensor dst;
  std::int64_t first;
  Tensor src;
  OpCost cost() const;
};

// ---- the model

/// x[M,C] = table[tokens[M]]; tokens i32.
struct Embedding {
  Tensor x, tokens, table;
  OpCost cost() const;
};

/// dtable[V,C] += dx[M,C] scattered by token, in token order (deterministic); dtable f32 or bf16.
struct EmbeddingBackward {
  Tensor dtable, dx, tokens;
  OpCost cost() const;
};

/// sum = x + branch, rstd = 1 / rms(sum), h = sum * rstd * weight.
struct AddRmsnorm {
  QuantizedTensor h;
  Tensor sum;   ///< [M, C]; without a branch it is x, and is not written
  Tensor rstd;  ///< f32 [M]
  Tensor x, branch;
  Tensor weight;  ///< [C]
  float eps;
  OpCost cost() const;
};

/// h again from a saved sum and rstd, bit for bit what AddRmsnorm wrote.
struct RecomputeRmsnorm {
  QuantizedTensor h;
  Tensor sum, rstd, weight;
  OpCost cost() const;
};

/// dx = dresidual + the gradient through the norm.
struct RmsnormBackward {
  QuantizedTensor dx;
  Tensor dweight;    ///< [C], f32 or bf16
  bool accumulate;   ///< dweight += instead of =
  Tensor dresidual;  ///< may be empty
  Tensor dh, x, rstd, weight;
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
  Tensor qkv;               ///< the unrotated input, read with QK-norm only
  RopeOptions options;
  OpCost cost() const;
};

/// dbias[N] = or += the sum over the rows of dy[M,N], in a fixed order; dbias f32 or bf16.
struct BiasBackward {
  Tensor dbias;
  bool accumulate;
  Tensor dy;
  OpCost cost() const;
};

/// Causal softmax(q k^T / sqrt(head_dim)) v. A query that sees no key gives 0, with lse -inf. On the CPU nothing of a key that
/// a query does not see reaches it, nor its gradient that key. On a GPU NaN and infinities do where both are in a tile:
/// products of whole tiles weigh such a key with 0, and 0 times these is NaN.
struct Attention {
  QuantizedTensor out;  ///< [M, q_width]
  Tensor lse;           ///< f32 [heads, M]: log sum exp of the scaled scores, index (b * heads + h) * T + t
  Tensor qkv;           ///< [M, qkv_width]; only q is read where kv is given
  AttentionShape shape;
  Tensor kv = {};  ///< [B * keys, kv_width]: keys and values of their own; empty: those of qkv
  OpCost cost() const;
};

struct AttentionBackward {
  Tensor dqkv;  ///< [M, qkv_width]; only dq is written where kv is given
  Tensor dout, out, lse, qkv;
  AttentionShape shape;
  Tensor kv = {};   ///< as in Attention
  Tensor dkv = {};  ///< [B * keys, kv_width]; given with kv
  OpCost cost() const;
};

/// s[M,F] = silu(gate) * up, gate_up[M, 2F] = [gate | up].
struct Swiglu {
  QuantizedTensor s;
  Tensor gate_up;
  OpCost cost() const;
};

/// dgate_up from ds; also writes s again, value and wanted forms, for wgrad.
struct SwigluBackward {
  QuantizedTensor dgate_up, s;
  Tensor ds, gate_up;
  OpCost cost() const;
};

/// loss[M] f32 = -log softmax(logits)[target] in nats; logits become dlogits = (softmax - onehot) * scale.
struct CrossEntropy {
  Tensor loss, logits, targets;
  float scale;
  OpCost cost() const;
};

/// out[0] = or += sum of x (f32), in a fixed order.
struct Sum {
  Tensor out, x;
  bool accumulate;
  OpCost cost() const;
};

// ---- the optimizer

/// out[0] = or += sum of x^2; x f32 or bf16, or codes with `scale`, f32 [1].
struct SumOfSquares {
  Tensor out, x;
  bool accumulate;
  Tensor scale = {};
  OpCost cost() const;
};

// ---- watching

/// out i32 [2]: an order-independent hash of the bits of x; equal tensors give equal words.
struct Fingerprint {
  Tensor out, x;
  OpCost cost() const;
};

/// out f32 [4] = or += {sum x y, sum x^2, sum y^2, sum (x-y)^2}, by which two gradients are compared; x and y f32 or bf16
/// each, of equal sizes, possibly none.
struct Correlate {
  Tensor out, x, y;
  bool accumulate;
  OpCost cost() const;
};

/// out f32 [5] = {sum v^2, sum (v-q)^2, nonzero elements, of them quantized to 0, saturated} of a form of `value`.
struct QuantizationError {
  Tensor out, value;
  GemmOperand form;
  bool columns;              ///< the form is the columnwise one
  RandomStream random = {};  ///< what the form's transform had its signs from
  OpCost cost() const;
};

}  // namespace precbench::ops

/// Every op: its struct, and its name as Device's function and in messages.
#define PRECBENCH_OPS(OP)                            \
  OP(Zero, zero)                                     \
  OP(Convert, convert)                               \
  OP(Add, add)                                       \
  OP(InitNormal, init_normal)                        \
  OP(Fill, fill)                                     \
  OP(Quantize, quantize)                             \
  OP(Dequantize, dequantize)                         \
  OP(TurnBack, turn_back)                            \
  OP(Matmul, matmul)                                 \
  OP(Amax, amax)                                     \
  OP(QuantizeWithAmax, quantize_with_amax)           \
  OP(UpdateHistory, update_history)                  \
  OP(Transpose, transpose)                           \
  OP(CopyColumns, copy_columns)                      \
  OP(Embedding, embedding)                           \
  OP(EmbeddingBackward, embedding_backward)          \
  OP(AddRmsnorm, add_rmsnorm)                        \
  OP(RecomputeRmsnorm, recompute_rmsnorm)            \
  OP(RmsnormBackward, rmsnorm_backward)              \
  OP(Rope, rope)                                     \
  OP(RopeBackward, rope_backward)                    \
  OP(BiasBackward, bias_backward)                    \
  OP(Attention, attention)                           \
  OP(AttentionBackward, attention_backward)          \
  OP(Swiglu, swiglu)                                 \
  OP(SwigluBackward, swiglu_backward)                \
  OP(Route, route)                                   \
  OP(RouteBackward, route_backward)                  \
  OP(Group, group)                                   \
  OP(GroupPeers, group_peers)                        \
  OP(Permute, permute)                               \
  OP(TransposeCodes, transpose_codes)                \
  OP(Unpermute, unpermute)                           \
  OP(QuantizeExperts, quantize_experts)              \
  OP(GroupedMatmul, grouped_matmul)                  \
  OP(GroupedSwiglu, grouped_swiglu)                  \
  OP(GroupedSwigluBackward, grouped_swiglu_backward) \
  OP(UpdateRoutingBias, update_routing_bias)         \
  OP(CrossEntropy, cross_entropy)                    \
  OP(Sum, sum)                                       \
  OP(SumOfSquares, sum_of_squares)                   \
  OP(Adamw, adamw)                                   \
  OP(CommitScale, commit_scale)                      \
  OP(Encode, encode)                                 \
  OP(Decode, decode)                                 \
  OP(SumCodes, sum_codes)                            \
  OP(Lion, lion)                                     \
  OP(Descend, descend)                               \
  OP(Momentum, momentum)                             \
  OP(ToUnitNorm, to_unit_norm)                       \
  OP(Combine, combine)                               \
  OP(FactoredSums, factored_sums)                    \
  OP(FactoredAverage, factored_average)              \
  OP(FactoredNorm, factored_norm)                    \
  OP(FactoredUpdate, factored_update)                \
  OP(Fingerprint, fingerprint)                       \
  OP(Correlate, correlate)                           \
  OP(QuantizationError, quantization_error)

namespace precbench {

enum class OpKind : std::uint8_t {
#define PRECBENCH_KIND(Op, name) name,
  PRECBENCH_OPS(PRECBENCH_KIND)
#undef PRECBENCH_KIND
};

#define PRECBENCH_COUNT(Op, name) +1  // NOLINT(bugprone-macro-parentheses): terms of one sum
inline constexpr int kOpKinds = PRECBENCH_OPS(PRECBENCH_COUNT);
#undef PRECBENCH_COUNT

const char* name_of(OpKind kind);  ///< as in PRECBENCH_OPS

}  // namespace precbench
