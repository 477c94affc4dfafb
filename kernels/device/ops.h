// The ops: everything a training step asks of a device, each a struct of its arguments with its cost. Those of a model's
// layers are in layer_ops.h, of experts in moe_ops.h, of the optimizer in update_ops.h, costs in ops.cpp and moe_ops.cpp,
// implementations in kernels/cpu and kernels/cuda.
//
// A new op is a struct in one of these headers, its cost(), a line in PRECBENCH_OPS below, and for each device that
// supports it a declaration in the device's header and an implementation. Device adds accounting, the error
// for unsupported ops and the dry run.
//
// Destinations come first, then sources, then shapes and constants. Matrices are row-major; M counts tokens
// (B sequences of T); activations are BF16. Unless stated otherwise an op reads BF16, computes in FP32 and
// rounds once to BF16.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device/layer_ops.h"
#include "kernels/device/moe_ops.h"
#include "kernels/device/operands.h"
#include "kernels/device/update_ops.h"

namespace precbench {

/// Format of one operand of a GEMM, or of one quantized copy that an op writes; BF16 if there is none.
struct OpFormat {
  DType dtype = DType::bf16;
  Granularity granularity = Granularity::none;
  ScaleType scale = ScaleType::none;

  bool operator==(const OpFormat&) const = default;
};

/// Minimum work of one op call: the speed-of-light time of a step is the sum over its ops. Beside it, what
/// the op's rate depends on.
struct OpCost {
  const char* name = "";
  OpClass op_class = OpClass::other;
  double flops = 0;          ///< a matrix multiply-add counts as 2
  double bytes = 0;          ///< each input read once, each output written once
  DType math = DType::bf16;  ///< dtype whose peak applies: e4m3 for FP8 GEMMs, e2m1 for FP4
  int casts = 0;             ///< number of quantized copies of activations and gradients made from values
  /// GEMM: m, n, k of D[m,n] = A[m,k] B[n,k]^T; with experts the rows of all m (wgrad: k) and their number.
  /// Attention: B, T, keys, offset, heads, kv_heads, head_dim. Other ops: rows and columns of what they write,
  /// if they go by rows. Unused entries are 0. A GEMM's role is part of the name.
  std::array<std::int64_t, 7> shape{};
  /// GEMM: operands A and B. Other ops: the rowwise and columnwise copies that they write.
  std::array<OpFormat, 2> formats{};
};

/// Returns true if two calls are equal in everything that their rate depends on.
bool same_call(const OpCost& a, const OpCost& b);
/// Returns the entries of a shape up to the last that is not 0.
std::vector<std::int64_t> used_entries(const std::array<std::int64_t, 7>& shape);
/// Returns "e4m3 1x128 f32, e4m3 128x128 f32"; empty if both are BF16.
std::string formats_text(const OpCost& cost);

}  // namespace precbench

namespace precbench::ops {

// ---- data movement

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

/// x[i] = std * z(seed, index.of(i)), z nearly normal (Irwin-Hall of 8), bit-identical on every device.
struct InitNormal {
  Tensor x;
  float std;
  std::uint64_t seed;
  ElementMap index;
  OpCost cost() const;
};

struct Fill {
  Tensor x;
  float value;
  OpCost cost() const;
};

// ---- linear layers

/// Writes the requested copies of `x`, and x.amax_out if present, from x.value.
struct Quantize {
  QuantizedTensor x;
  bool weight = false;  ///< a weight's casts are not counted
  OpCost cost() const;
  /// Returns true if nothing is requested: the call is not an op.
  bool idle() const;
};

/// dst = the dequantized values of a copy; dst BF16 [rows, k]. Exact for FP4 and for FP8 with power-of-two
/// scales.
struct Dequantize {
  Tensor dst;
  GemmOperand operand;
  OpCost cost() const;
};

/// dst = or += the inverse Hadamard transform of src, for the FP4 copy `operand` with fixed signs. With
/// `value`, the source of a copy with quest scales, elements that the cast clipped are first set to 0. All
/// [rows, k], in operand's order.
struct InverseHadamard {
  Tensor dst;  ///< bf16 or f32
  bool accumulate;
  Tensor src;    ///< bf16 or f32
  Tensor value;  ///< may be empty
  GemmOperand operand;
  OpCost cost() const;
};

/// D[M,N] = A[M,k] B[N,k]^T into BF16 or FP32. On the CPU an element's bits depend only on its rows of A and
/// B.
struct Matmul {
  Tensor d;
  GemmOperand a, b;
  MatmulOptions options = {};
  OpCost cost() const;
};

// ---- FP8 weights exchanged between ranks

/// out[0] = max |x|; NaN if x has a NaN, 0 without elements; out f32, x f32 or bf16.
struct Amax {
  Tensor out, x;
  OpCost cost() const;
};

/// Quantizes one rank's part of a matrix with a per-tensor scale: operand.data = value / scale, and
/// operand.scale. The scale depends on `amax`, f32 [1], only. value is f32 or bf16, with as many elements as
/// operand.data, possibly none.
struct QuantizeWithAmax {
  GemmOperand operand;
  Tensor value, amax;
  OpCost cost() const;
};

/// Ends a step of delayed scaling, slot by slot. a = staged[slot], which is reset to 0. If a is positive and
/// finite, known[slot] = a with `most_recent`, else the maximum of a and the slot's history. The history then
/// shifts: its first entry is removed and a appended.
struct UpdateHistory {
  Tensor known;    ///< f32 [1, slots]
  Tensor history;  ///< f32 [slots, kept steps], oldest first; may be empty
  Tensor staged;   ///< f32 [1, slots]
  bool most_recent;
  OpCost cost() const;
};

/// dst[k, rows] = src[rows, k] with per-tensor or 128x128 block scales, so that weights quantized for fprop
/// also serve dgrad. rows and k are multiples of 16.
struct Transpose {
  GemmOperand dst, src;
  OpCost cost() const;
};

/// dst[r, first + c] = src[r, c], or, if src is wider, dst[r, c] = src[r, first + c]; one dtype of whole
/// bytes.
struct CopyColumns {
  Tensor dst;
  std::int64_t first;
  Tensor src;
  OpCost cost() const;
};

/// Orders the rows of sequences of T tokens that `parts` ranks share: dst [B][T] = src, gathered in rank
/// order, [parts][half][B][chunk] (sequence_part.h). `to_ranks`: the inverse, from [B][T] to rank order. One
/// dtype, with rows of whole bytes (on a GPU of 16); the buffers must not overlap.
struct PlaceRows {
  Tensor dst, src;
  std::int64_t T;
  int parts;
  bool to_ranks = false;
  OpCost cost() const;

  std::int64_t sequences() const { return dst.rows / T; }
};

// ---- the optimizer

/// out[0] = or += sum of x^2; x f32 or bf16, or codes with `scale`, f32 [1].
struct SumOfSquares {
  Tensor out, x;
  bool accumulate;
  Tensor scale = {};
  OpCost cost() const;
};

// ---- monitoring

/// out i32 [2]: an order-independent hash of the bits of x; equal tensors give equal words.
struct Fingerprint {
  Tensor out, x;
  OpCost cost() const;
};

/// out f32 [4] = or += {sum x y, sum x^2, sum y^2, sum (x-y)^2}, to compare two gradients; x and y f32 or
/// bf16 each, of equal sizes, possibly empty.
struct Correlate {
  Tensor out, x, y;
  bool accumulate;
  OpCost cost() const;
};

/// out f32 [5] = {sum v^2, sum (v-q)^2, nonzero elements, number of them quantized to 0, saturated} for a
/// copy of `value`.
struct QuantizationError {
  Tensor out, value;
  GemmOperand operand;
  bool columns;              ///< true: `operand` is the columnwise copy
  RandomStream random = {};  ///< source of the transform's random signs
  OpCost cost() const;
};

}  // namespace precbench::ops

/// All ops: the struct, and the name used for Device's function and in messages.
#define PRECBENCH_OPS(OP)                            \
  OP(Zero, zero)                                     \
  OP(Convert, convert)                               \
  OP(Add, add)                                       \
  OP(InitNormal, init_normal)                        \
  OP(Fill, fill)                                     \
  OP(Quantize, quantize)                             \
  OP(Dequantize, dequantize)                         \
  OP(InverseHadamard, inverse_hadamard)              \
  OP(Matmul, matmul)                                 \
  OP(Amax, amax)                                     \
  OP(QuantizeWithAmax, quantize_with_amax)           \
  OP(UpdateHistory, update_history)                  \
  OP(Transpose, transpose)                           \
  OP(CopyColumns, copy_columns)                      \
  OP(PlaceRows, place_rows)                          \
  OP(Embedding, embedding)                           \
  OP(EmbeddingBackward, embedding_backward)          \
  OP(AddRmsnorm, add_rmsnorm)                        \
  OP(RecomputeRmsnorm, recompute_rmsnorm)            \
  OP(RmsnormBackward, rmsnorm_backward)              \
  OP(AddLayernorm, add_layernorm)                    \
  OP(RecomputeLayernorm, recompute_layernorm)        \
  OP(LayernormBackward, layernorm_backward)          \
  OP(Rope, rope)                                     \
  OP(RopeBackward, rope_backward)                    \
  OP(LatentHeads, latent_heads)                      \
  OP(LatentHeadsBackward, latent_heads_backward)     \
  OP(AddBias, add_bias)                              \
  OP(BiasBackward, bias_backward)                    \
  OP(GateRows, gate_rows)                            \
  OP(GateRowsBackward, gate_rows_backward)           \
  OP(Attention, attention)                           \
  OP(AttentionBackward, attention_backward)          \
  OP(AttentionSink, attention_sink)                  \
  OP(AttentionSinkBackward, attention_sink_backward) \
  OP(MergeAttention, merge_attention)                \
  OP(Swiglu, swiglu)                                 \
  OP(SwigluBackward, swiglu_backward)                \
  OP(Activate, activate)                             \
  OP(ActivateBackward, activate_backward)            \
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
  OP(AddExpertBias, add_expert_bias)                 \
  OP(ExpertBiasBackward, expert_bias_backward)       \
  OP(AddRoutedBias, add_routed_bias)                 \
  OP(RoutedBiasBackward, routed_bias_backward)       \
  OP(UpdateRoutingBias, update_routing_bias)         \
  OP(CrossEntropy, cross_entropy)                    \
  OP(LogitStats, logit_stats)                        \
  OP(LogitGradient, logit_gradient)                  \
  OP(CompareLogits, compare_logits)                  \
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
