// The ops of a mixture of experts, and the groups of rows that they share. A token has top_k slots, one for each expert
// that it goes to; slot t * top_k + k is token t's k-th. A slot that is not dropped has a row in its expert's group.
//
// How many rows an expert has is known on the device only. Shapes are of the capacity, ops read the offsets where they run,
// and so a captured step replays with another routing. No result depends on how an op is scheduled.
#pragma once

#include "kernels/device/operands.h"
#include "kernels/numerics/routing_rule.h"

namespace precbench {

struct OpCost;

/// The rows of every expert, group behind group, each in the order of the tokens. A group starts at a multiple of `pad`,
/// and rows up to the next one's start are padding: zeros in a value, and what zeros quantize to in a form.
struct Groups {
  Tensor offsets;  ///< i32 [1, E + 1]: the first row of each group, and the end of the last one's padding
  Tensor counts;   ///< i32 [1, E]: rows of each group without padding
  Tensor row_of;   ///< i32 [T, K]: a slot's row; -1: dropped
  Tensor source;   ///< i32 [1, rows_capacity]: a row's slot; -1: padding, and all rows behind the last group
  std::int64_t pad = 1;
  std::int64_t rows_expected = 0;  ///< slots that are not dropped where experts are chosen equally often

  std::int64_t experts() const { return counts.cols; }
  std::int64_t top_k() const { return row_of.cols; }
  std::int64_t rows_capacity() const { return source.cols; }
};

/// Rows that groups of `slots` slots may need, whatever the routing: a multiple of `pad`.
constexpr std::int64_t rows_capacity(std::int64_t slots, std::int64_t experts, std::int64_t pad) {
  return (slots + (experts < slots ? experts : slots) * (pad - 1)) / pad * pad;
}

/// Entries of the scales of the columnwise form, [cols, rows_capacity], of a grouped value: those of the whole matrix, but
/// of granularity `row` one per expert and column, at expert * cols + column.
std::int64_t grouped_scale_count(Granularity g, std::int64_t experts, std::int64_t cols, std::int64_t rows);
/// The same of a form of stacked weights, [E * rows, k]: those of the whole matrix, but one of each expert where one
/// belongs to the tensor.
std::int64_t stacked_scale_count(Granularity g, std::int64_t experts, std::int64_t rows, std::int64_t k);

}  // namespace precbench

namespace precbench::ops {

/// z = x router^T, in FP32 from BF16, and the experts that each token goes to. A token with a logit that is not finite gets
/// NaN weights. Keys without a bias and without groups are compared as logits, whose order is the probabilities'.
struct Route {
  Tensor z;        ///< f32 [T, E]
  Tensor index;    ///< i32 [T, K], in descending order of the keys
  Tensor weights;  ///< f32 [T, K]
  Tensor
      report;  ///< f32 [1, E + 2]: slots of each expert; E * sum f P, with f the experts' parts of the slots and P the
               ///< means over tokens of p / sum p; mean of logsumexp(z)^2
  Tensor bad;        ///< i32 [1, 1]: the first token with a logit that is not finite; -1: none
  Tensor x, router;  ///< [T, C], [E, C]
  Tensor bias;       ///< f32 [1, E], added to p in the keys alone; may be empty
  Tensor forced;     ///< i32 [T, K]: the experts, instead of the best; may be empty
  RoutingRule rule;
  OpCost cost() const;
};

/// dx = addend + dz router, drouter = or += dz^T x, in FP32. dz is that of the weights, whose gradient is dw, and of
/// loss_scale * T times (balance * E * sum f P + z_loss * mean logsumexp(z)^2), with f constant; see Route.
struct RouteBackward {
  Tensor dx;       ///< f32 [T, C]
  Tensor drouter;  ///< [E, C], f32 or bf16
  bool accumulate;
  Tensor addend;            ///< [T, C]; may be empty
  Tensor dw;                ///< f32 [T, K]
  Tensor z, index, report;  ///< Route's
  Tensor x, router;
  RoutingRule rule;
  float balance = 0, z_loss = 0, loss_scale = 0;
  OpCost cost() const;
};

/// Fills `groups` from the slots' experts: from `first` on as many as there are groups. Slots of others have no row. Of an
/// expert's slots beyond `most` the later ones are dropped.
struct Group {
  Groups groups;
  Tensor report;      ///< f32 [1, 3]: rows; rows with padding; slots dropped
  Tensor index;       ///< i32 [T, K]; -1: no slot
  std::int64_t most;  ///< rows of an expert
  std::int64_t first = 0;
  Tensor kept = {};  ///< i32 [T, K]: the experts of the slots that have a row, -1 of all others; may be empty
  OpCost cost() const;
};

/// Which tokens go to which of the ranks that divide the experts, each with `experts` of them in a row. A token goes to a rank
/// once, however many of its experts it takes. `peers` has a group of rows for each rank, at most `most`, in the order of the
/// tokens; what comes later is dropped with all of its slots there. Groups begin at multiples of `most`, or where `tight` each
/// where the last one ends. What they are is as in Group, with ranks for experts: a token has a slot for every rank.
struct GroupPeers {
  Groups peers;
  Tensor row_index;       ///< i32 [rows_capacity, K]: the experts of a row's token; -1 where there is none
  Tensor row_weights;     ///< f32 likewise; 0
  Tensor report;          ///< f32 [1, 1]: slots dropped
  Tensor index, weights;  ///< [T, K]; an expert of -1: no slot
  std::int64_t experts, most;
  bool tight = false;
  OpCost cost() const;
};

/// Rows of tokens into groups: x.value [rows_capacity, cols] and the wanted forms. Of granularities that belong to a token
/// or to the tensor the rowwise form's codes and scales are those of src.rowwise, gathered. The columnwise form is made from
/// src.value. x.value is needed for that alone, and may be empty where codes are gathered. With weights a row is multiplied
/// by its slot's and rounded before anything else, and no code is gathered. Rows behind the last group may be left out.
/// src may have more rows than there are tokens; those behind belong to no slot.
struct Permute {
  QuantizedTensor x, src;
  Tensor weights;  ///< f32 [T, K]; may be empty
  Groups groups;
  OpCost cost() const;
};

/// The columnwise form of what a rowwise one stands for, made of its codes: dst[k, rows] = src[rows, k], e4m3 under powers of
/// two of 1x128 both. 128 rows of a column get the largest finite scale S of those rows' blocks, and a code becomes
/// cast(decode(code) * its scale / S): the exponent falls, and only what falls below the smallest normal is rounded. Codes
/// under a scale that is not finite become NaN. rows and k are multiples of 128, and so is pad: no scale spans two groups, and
/// that of padding is the least. With groups, rows behind the last one may be left out.
struct TransposeCodes {
  GemmOperand dst, src;
  Groups groups = {};  ///< may be empty: all rows
  OpCost cost() const;
};

/// out[t] = the sum of its slots' rows, in slot order, plus addend[t]: in FP32, rounded once. With weights rows are multiplied
/// by their slots' first, and dw[t, k] = the product of the slot's row with x[t], 0 of a dropped one.
struct Unpermute {
  Tensor out, rows;     ///< [T, C], [rows_capacity, C]
  Tensor addend;        ///< [T, C], f32 or out's; may be empty
  Tensor weights = {};  ///< f32 [T, K]; may be empty, and dw and x with it
  Tensor dw = {}, x = {};
  Groups groups = {};
  OpCost cost() const;
};

/// The forms of stacked weights [E * N, k], every expert by itself: rowwise [E * N, k], columnwise [E * k, N], in which each
/// expert's own transpose follows the last one's. w.amax_out and w.amax_in are f32 [1, experts], each expert's own; forms with
/// one scale for an expert need neither.
struct QuantizeExperts {
  QuantizedTensor w;
  std::int64_t experts;
  OpCost cost() const;
};

/// A product for each expert e with its rows. fprop, dgrad: rows of e in D = those of A times B_e^T; padding's rows
/// of D are undefined. wgrad: D_e = or += A_e B_e^T over the rows of e, D stacked; without rows 0, or nothing is added.
struct GroupedMatmul {
  Tensor d;       ///< [rows_capacity, N], a row on the CPU the same bits in any group; wgrad: [E * N, k]
  GemmOperand a;  ///< [rows_capacity, k]; wgrad: [N, rows_capacity]
  GemmOperand
      b;  ///< [E * N, k], or the BF16 [E * k, N] transposed expert by expert; wgrad: [k, rows_capacity]
  Groups groups;
  MatmulOptions options = {};
  OpCost cost() const;
};

/// s = silu(gate) * up * the row's weight, rounded once; gate_up [rows_capacity, 2F] = [gate | up].
struct GroupedSwiglu {
  QuantizedTensor s;
  Tensor gate_up;
  Tensor weights;  ///< f32 [T, K]; may be empty: 1
  Groups groups;
  OpCost cost() const;
};

/// dgate_up from ds, and s again for wgrad; with weights dw[t, k] = the sum of ds * silu(gate) * up over the slot's row, 0
/// of a dropped one.
struct GroupedSwigluBackward {
  QuantizedTensor dgate_up, s;
  Tensor dw;  ///< f32 [T, K]; empty without weights
  Tensor ds, gate_up, weights;
  Groups groups;
  OpCost cost() const;
};

/// bias[l, e] += rate * sign(mean of counts[l] - counts[l, e]); f32 [layers, E].
struct UpdateRoutingBias {
  Tensor bias, counts;
  float rate;
  OpCost cost() const;
};

}  // namespace precbench::ops
