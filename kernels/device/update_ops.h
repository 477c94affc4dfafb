// The optimizer ops: AdamW, Lion, Muon, Adafactor, and tensors stored as codes with a scale. Part of ops.h,
// which states the conventions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/operands.h"

namespace precbench {
struct OpCost;
}

namespace precbench::ops {

/// Elements [first, last) of a run of weights, and f32 [1, n] for the amaxes of their new values: n equal
/// parts, each amax raised to its part's. Parts begin and end at multiples of 8.
struct WeightAmax {
  std::int64_t first, last;
  Tensor amax;
  std::int64_t part_size() const { return (last - first) / amax.size(); }
};

/// AdamW on a run of elements. If a moment or the master has a per-tensor scale, a step takes two passes. A
/// measuring pass only raises the amaxes; the storing pass uses the scales that these give, which CommitScale
/// then records. The update uses the moments before they are rounded.
struct Adamw {
  Tensor weights;   ///< bf16; may be empty if there is a master
  Tensor master;    ///< f32, or f16 with a scale; empty: the weights are their own master
  Tensor m, v;      ///< f32 or bf16; f16 or e4m3 with a scale
  Tensor gradient;  ///< f32 or bf16; e4m3 with a scale
  Tensor scalars;   ///< StepScalars as 4 words
  Tensor
      norm_squared;  ///< f32 [1]: read if max_norm clips; else the gradient's sum of squares is added to it
  UpdateOptions options;
  StateScale m_scale = {}, v_scale = {};
  bool measure = false;
  StateScale master_scale = {};
  Tensor gradient_scale = {};  ///< f32 [1]
  /// Disjoint and in order; for BF16 weights, if nothing has a scale.
  std::vector<WeightAmax> amaxes = {};
  OpCost cost() const;

  bool scaled() const {
    return !m_scale.scale.empty() || !v_scale.scale.empty() || !master_scale.scale.empty() ||
           !gradient_scale.empty();
  }
  /// Returns true if there is an amax to raise.
  bool measures() const { return m_scale.of_tensor() || v_scale.of_tensor() || master_scale.of_tensor(); }
};

/// Codes, f16 or e4m3 with a per-tensor scale, of src, or with `accumulate` of src plus their own values, in
/// FP32 and rounded once. Two passes like Adamw: `measure` only raises the amax, the other stores with the
/// scale that it gives. Elements are rounded once even if a tensor is encoded in parts.
struct Encode {
  Tensor codes;
  StateScale scale;
  Tensor src;  ///< f32 or bf16
  bool accumulate = false, measure = false;
  float headroom =
      1;  ///< a power of two by which the scale is divided, as commit_scale does with max / headroom
  OpCost cost() const;
};

/// dst = the values of codes; f32, or bf16 (RNE), which may overwrite f16 codes in place.
struct Decode {
  Tensor dst, codes, scale;
  OpCost cost() const;
};

/// dst[i] = the sum over rows of codes[row, first + i], in FP32 and in row order; all share one scale, f32
/// [1]. `round`: each partial sum is rounded to the codes' format, to nearest even and saturating, with that
/// scale.
struct SumCodes {
  Tensor dst;    ///< f32
  Tensor codes;  ///< [rows, cols]
  std::int64_t first;
  Tensor scale;
  bool round = false;
  OpCost cost() const;
};

/// scale[i] = state_scale(amax[i], max, scale[i]), and amax[i] = 0; f32 of equal sizes.
struct CommitScale {
  Tensor scale, amax;
  float max;
  OpCost cost() const;
};

/// Lion (Chen et al. 2023, Algorithm 2) on a run of elements: the sign of beta1 m + (1 - beta1) g, then m =
/// beta2 m + (1 - beta2) g. norm_squared is read if max_norm clips.
struct Lion {
  Tensor weights, master;  ///< as in Adamw
  Tensor m;                ///< f32 or bf16
  Tensor gradient, scalars, norm_squared;
  UpdateOptions options;
  OpCost cost() const;
};

/// w -= lr (factor * update + weight_decay * w) on a run of elements.
struct Descend {
  Tensor weights, master;  ///< as in Adamw
  Tensor update;           ///< bf16
  Tensor scalars;
  float factor;
  UpdateOptions options;
  OpCost cost() const;
};

/// Muon's Nesterov momentum: m += (1 - momentum) (g - m), update = g + momentum (m - g).
struct Momentum {
  Tensor update;  ///< bf16
  Tensor m;       ///< f32 or bf16
  Tensor gradient, norm_squared;
  float momentum, max_norm;
  OpCost cost() const;
};

/// x /= max(sqrt(norm_squared[0]), eps); x bf16.
struct ToUnitNorm {
  Tensor x, norm_squared;
  float eps;
  OpCost cost() const;
};

/// dst = alpha x + beta y, f32 or bf16 each; dst may be x or y.
struct Combine {
  Tensor dst;
  float alpha;
  Tensor x;
  float beta;
  Tensor y;
  OpClass op_class = OpClass::optimizer;
  OpCost cost() const;
};

// Adafactor (Shazeer & Stern 2018) in four passes, between which ranks add up their parts of a matrix.
// `first`: start of this rank's part in the flattened matrix or vector; the part may be empty.

/// Sums of the squared gradient by row, f32 [R] or empty, and by column, f32 [C]; 0 where this rank has no
/// part.
struct FactoredSums {
  Tensor rows, cols;
  Tensor gradient;
  std::int64_t first;
  OpCost cost() const;
};

/// moment += (sums' mean - moment) * new part, on whole sums, and moment.row_mean.
struct FactoredAverage {
  FactoredMoment moment;
  Tensor row_sums, col_sums;
  Tensor scalars, norm_squared;
  float max_norm;
  OpCost cost() const;
};

/// out[0] = the sum of squares of the part's update, g / sqrt(second moment), f32 [1].
struct FactoredNorm {
  Tensor out;
  FactoredMoment moment;
  Tensor gradient;
  std::int64_t first;
  Tensor norm_squared;
  UpdateOptions options;
  OpCost cost() const;
};

/// Updates the weights by the update, clipped to an RMS of 1, times the weights' own RMS.
struct FactoredUpdate {
  Tensor weights, master;  ///< as in Adamw
  FactoredMoment moment;
  Tensor gradient;
  std::int64_t first;
  Tensor weight_squares, update_squares;  ///< f32 [1] each: of the whole matrix or vector
  Tensor scalars, norm_squared;
  UpdateOptions options;
  OpCost cost() const;
};

}  // namespace precbench::ops
