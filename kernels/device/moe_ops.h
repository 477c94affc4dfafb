// The MoE ops and the row groups that they share. A token has top_k slots, one for each expert that it is
// routed to; slot t * top_k + k is token t's k-th. A slot that is not dropped has a row in its expert's
// group.
//
// Rows per expert are known on the device only. Shapes have the capacity, and ops read the offsets when they
// run, so a captured step replays with another routing. No result depends on how an op is scheduled.
#pragma once

#include "kernels/device/operands.h"
#include "kernels/numerics/routing_rule.h"

namespace precbench {

struct OpCost;

/// Rows sorted by expert, one group per expert in token order. A group starts at a multiple of `pad`. Rows
/// between a group's end and the next start are padding: zeros in a value, quantized zeros in a quantized
/// copy.
struct Groups {
  Tensor offsets;  ///< i32 [1, E + 1]: first row of each group, and the end of the last group's padding
  Tensor counts;   ///< i32 [1, E]: rows of each group without padding
  Tensor row_of;   ///< i32 [T, K]: a slot's row; -1: dropped
  Tensor source;   ///< i32 [1, rows_capacity]: a row's slot; -1: padding, and all rows after the last group
  std::int64_t pad = 1;
  std::int64_t rows_expected = 0;  ///< kept slots if experts are chosen equally often

  std::int64_t experts() const { return counts.cols; }
  std::int64_t top_k() const { return row_of.cols; }
  std::int64_t rows_capacity() const { return source.cols; }
};

/// Returns the rows that groups of `slots` slots need at most under any routing: a multiple of `pad`.
constexpr std::int64_t rows_capacity(std::int64_t slots, std::int64_t experts, std::int64_t pad) {
  return (slots + (experts < slots ? experts : slots) * (pad - 1)) / pad * pad;
}

/// Returns the number of scales of a grouped value's columnwise copy [cols, rows_capacity]. It is that of the
/// whole matrix, except for granularity `row`: one per expert and column, at expert * cols + column.
std::int64_t grouped_scale_count(Granularity g, std::int64_t experts, std::int64_t cols, std::int64_t rows);
/// Returns the number of scales of a copy of stacked weights [E * rows, k]: that of the whole matrix, or E
/// times that of one expert (scales_by_expert).
std::int64_t stacked_scale_count(Granularity g, std::int64_t experts, std::int64_t rows, std::int64_t k);
/// Returns an expert's part of a copy of stacked weights, whose scales follow those of the expert before
/// (scales_by_expert).
GemmOperand part_of_expert(GemmOperand stack, std::int64_t expert, std::int64_t experts);

}  // namespace precbench

namespace precbench::ops {

/// Computes z = x router^T + logit_bias in FP32 from BF16, and each token's experts. A token with a non-finite logit gets
/// NaN weights. Without a bias and without expert groups, logits are compared instead of probabilities: they
/// have the same order.
struct Route {
  Tensor z;        ///< f32 [T, E]
  Tensor index;    ///< i32 [T, K], by descending score
  Tensor weights;  ///< f32 [T, K]
  Tensor report;  ///< f32 [1, E + 2]: slots of each expert; E * sum f P with f the experts' slot shares and P
                  ///< the means over tokens of p / sum p; mean of logsumexp(z)^2
  Tensor bad;     ///< i32 [1, 1]: first token with a non-finite logit; -1: none
  Tensor x, router;  ///< [T, C], [E, C]
  Tensor bias;       ///< f32 [1, E], added to p for the selection only; may be empty
  Tensor forced;     ///< i32 [T, K]: experts to use instead of the top K; may be empty
  RoutingRule rule;
  Tensor logit_bias = {};  ///< [1, E]; may be empty
  OpCost cost() const;
};

/// dx = addend + dz router; drouter = or += dz^T x, in FP32. dz is the gradient through the weights, whose
/// gradient is dw, plus that of loss_scale * T * (balance * E * sum f P + z_loss * mean logsumexp(z)^2) with
/// f constant; see Route.
struct RouteBackward {
  Tensor dx;       ///< f32 [T, C]
  Tensor drouter;  ///< [E, C], f32 or bf16
  bool accumulate;
  Tensor addend;            ///< [T, C]; may be empty
  Tensor dw;                ///< f32 [T, K]
  Tensor z, index, report;  ///< from Route
  Tensor x, router;
  RoutingRule rule;
  float balance = 0, z_loss = 0, loss_scale = 0;
  Tensor dlogit_bias = {};  ///< [1, E], as drouter: = or += the sum of dz over the tokens; may be empty
  OpCost cost() const;
};

/// Fills `groups` from the slots' experts; the first group is expert `first`. Slots of other experts get no
/// row. Only an expert's first `most` slots are kept.
struct Group {
  Groups groups;
  Tensor report;      ///< f32 [1, 3]: rows; rows with padding; slots dropped
  Tensor index;       ///< i32 [T, K]; -1: no slot
  std::int64_t most;  ///< row limit of an expert
  std::int64_t first = 0;
  Tensor kept = {};  ///< i32 [T, K]: the expert of each slot with a row, -1 for all others; may be empty
  OpCost cost() const;
};

/// Groups tokens by the expert-parallel rank that owns their experts, `experts` consecutive ones per rank. A
/// token goes to a rank once, however many of its experts are there. `peers` has one group per rank of at
/// most `most` rows in token order; later tokens are dropped with all their slots there. Groups begin at
/// multiples of `most`, or with `tight` where the previous one ends. Fields are as in Group with ranks for
/// experts: a token has a slot for every rank.
struct GroupPeers {
  Groups peers;
  Tensor row_index;       ///< i32 [rows_capacity, K]: experts of a row's token; -1: none
  Tensor row_weights;     ///< f32 [rows_capacity, K]: their weights; 0: none
  Tensor report;          ///< f32 [1, 1]: slots dropped
  Tensor index, weights;  ///< [T, K]; an expert of -1: no slot
  std::int64_t experts, most;
  bool tight = false;
  OpCost cost() const;
};

/// Gathers token rows into groups: x.value [rows_capacity, cols] and the requested copies. Granularities per
/// token or per tensor gather data and scales from src.rowwise. The columnwise copy is made from src.value.
/// x.value is only needed for that and may be empty if quantized data is gathered. With weights, a row is
/// first multiplied by its slot's weight and rounded, and no quantized data is gathered. Rows after the last
/// group may be skipped. src may have more rows than there are tokens; the extra rows belong to no slot.
struct Permute {
  QuantizedTensor x, src;
  Tensor weights;  ///< f32 [T, K]; may be empty
  Groups groups;
  OpCost cost() const;
};

/// Makes a columnwise copy from a rowwise copy: dst[k, rows] = src[rows, k], both e4m3 with
/// power-of-two 1x128 scales. 128 rows of a column get the largest finite scale S of those rows' blocks, and
/// a code becomes cast(decode(code) * its scale / S): only results below the smallest normal are rounded.
/// Codes with a non-finite scale become NaN. rows, k and pad are multiples of 128: no scale spans two groups.
/// Padding has the least scale. With groups, rows after the last one may be skipped.
struct TransposeCodes {
  GemmOperand dst, src;
  Groups groups = {};  ///< may be empty: all rows
  OpCost cost() const;
};

/// out[t] = addend[t] + the sum of its slots' rows in slot order, in FP32, rounded once. With weights, rows
/// are first multiplied by their slots' weights, and dw[t, k] = dot(slot's row, x[t]), 0 for a dropped slot.
struct Unpermute {
  Tensor out, rows;     ///< [T, C], [rows_capacity, C]
  Tensor addend;        ///< [T, C], f32 or out's dtype; may be empty
  Tensor weights = {};  ///< f32 [T, K]; may be empty, then dw and x are too
  Tensor dw = {}, x = {};
  Groups groups = {};
  OpCost cost() const;
};

/// Quantizes stacked weights [E * N, k], each expert separately: rowwise [E * N, k], columnwise [E * k, N]
/// with the experts' transposes stacked. w.amax_out and w.amax_in are f32 [1, experts]. Formats with one
/// scale per expert need neither.
struct QuantizeExperts {
  QuantizedTensor w;
  std::int64_t experts;
  OpCost cost() const;
};

/// One GEMM per expert e over its rows. fprop, dgrad: rows of e in D = those of A times B_e^T; padding rows
/// of D are undefined. wgrad: D_e = or += A_e B_e^T over the rows of e, D stacked; without rows 0, or nothing
/// is added.
struct GroupedMatmul {
  Tensor d;       ///< [rows_capacity, N], on the CPU a row has the same bits in any group; wgrad: [E * N, k]
  GemmOperand a;  ///< [rows_capacity, k]; wgrad: [N, rows_capacity]
  GemmOperand
      b;  ///< [E * N, k], or the BF16 [E * k, N] transposed expert by expert; wgrad: [k, rows_capacity]
  Groups groups;
  MatmulOptions options = {};
  OpCost cost() const;
};

/// x += the bias of a row's expert. Padding rows are undefined before and after.
struct AddExpertBias {
  Tensor x;     ///< [rows_capacity, N]
  Tensor bias;  ///< [1, E * N] of the groups' experts
  Groups groups;
  OpCost cost() const;
};

/// dbias = or += the sums of dy [rows_capacity, N] over each expert's rows in a fixed order; 0 without rows.
struct ExpertBiasBackward {
  Tensor dbias;  ///< [1, E * N], f32 or bf16
  bool accumulate;
  Tensor dy;
  Groups groups;
  OpCost cost() const;
};

/// out[t] += the sum over a token's slots, in order, of weights[t, k] * the bias of expert index[t, k].
struct AddRoutedBias {
  Tensor out;      ///< [T, N]
  Tensor bias;     ///< [1, E * N] of all experts
  Tensor index;    ///< i32 [T, K]
  Tensor weights;  ///< f32 [T, K]
  OpCost cost() const;
};

/// dbias = or += the sums over an expert's slots of weights[t, k] * dy[t], in a fixed order;
/// dw[t, k] += dot(dy[t], the bias of expert index[t, k]).
struct RoutedBiasBackward {
  Tensor dbias;  ///< [1, E * N], f32 or bf16
  bool accumulate;
  Tensor dw;  ///< f32 [T, K]
  Tensor dy;  ///< [T, N]
  Tensor bias, index, weights;
  OpCost cost() const;
};

/// s = silu(gate) * up * the row's weight, rounded once; gate_up [rows_capacity, 2F] = [gate | up]. With a limit
/// it is clamped (gpt-oss): (up + 1) * gate * sigmoid(1.702 gate), of min(gate, limit) and up within +-limit.
struct GroupedSwiglu {
  QuantizedTensor s;
  Tensor gate_up;
  Tensor weights;  ///< f32 [T, K]; empty: 1
  Groups groups;
  float limit = 0;  ///< 0: not clamped
  OpCost cost() const;
};

/// Computes dgate_up from ds, and s again for wgrad. With weights, dw[t, k] = the sum of ds * the unweighted s
/// over the slot's row, 0 for a dropped slot. As in PyTorch, a value at the limit or beyond has no gradient.
struct GroupedSwigluBackward {
  QuantizedTensor dgate_up, s;
  Tensor dw;  ///< f32 [T, K]; empty without weights
  Tensor ds, gate_up, weights;
  Groups groups;
  float limit = 0;
  OpCost cost() const;
};

/// bias[l, e] += rate * sign(mean of counts[l] - counts[l, e]); f32 [layers, E].
struct UpdateRoutingBias {
  Tensor bias, counts;
  float rate;
  OpCost cost() const;
};

}  // namespace precbench::ops
