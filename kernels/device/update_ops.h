// The ops of the optimizers: AdamW, Lion, Muon, Adafactor, and tensors that are kept as codes with a scale. A part of ops.h,
// which says how ops are written.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/operands.h"

namespace precbench {
struct OpCost;
}

namespace precbench::ops {

/// Elements [first, last) of a run of weights, and where the largest magnitude of what they become goes: f32 [1, n], of n equal
/// parts, each raised to its own. Where a part begins and ends are multiples of 8.
struct WeightAmax {
  std::int64_t first, last;
  Tensor amax;
  std::int64_t part_size() const { return (last - first) / amax.size(); }
};

/// AdamW on a run of elements. Where a moment or the master has the scale of its tensor, two passes make a step: one that
/// measures raises the amaxes and changes nothing else, and the other stores by the scale that these give, which
/// CommitScale then notes. The update is by the moments before they are rounded.
struct Adamw {
  Tensor weights;   ///< bf16; may be empty where there is a master
  Tensor master;    ///< f32, or f16 with a scale; empty: the weights are their own master
  Tensor m, v;      ///< f32 or bf16; f16 or e4m3 with a scale
  Tensor gradient;  ///< f32 or bf16; e4m3 with a scale
  Tensor scalars;   ///< StepScalars as 4 words
  Tensor
      norm_squared;  ///< f32 [1]: read where max_norm clips; else the gradient's sum of squares is added to it
  UpdateOptions options;
  StateScale m_scale = {}, v_scale = {};
  bool measure = false;
  StateScale master_scale = {};
  Tensor gradient_scale = {};  ///< f32 [1]
  /// Apart from each other and in order; of BF16 weights, where nothing has a scale.
  std::vector<WeightAmax> amaxes = {};
  OpCost cost() const;

  bool scaled() const {
    return !m_scale.scale.empty() || !v_scale.scale.empty() || !master_scale.scale.empty() ||
           !gradient_scale.empty();
  }
  /// Whether there is an amax to raise.
  bool measures() const { return m_scale.of_tensor() || v_scale.of_tensor() || master_scale.of_tensor(); }
};

/// Codes, f16 or e4m3 with one scale for the tensor, of src, or with `accumulate` of src plus what they stand for, in FP32
/// and rounded once. In two passes like Adamw: `measure` raises the amax alone, the other stores by the scale that it
/// gives. No element is rounded twice however often the op is called for parts of a tensor.
struct Encode {
  Tensor codes;
  StateScale scale;
  Tensor src;  ///< f32 or bf16
  bool accumulate = false, measure = false;
  float room =
      1;  ///< a power of two: the scale is so many times smaller, as commit_scale of max / room has it
  OpCost cost() const;
};

/// dst = what codes stand for; f32, or bf16 (RNE), where it may be the memory of f16 codes.
struct Decode {
  Tensor dst, codes, scale;
  OpCost cost() const;
};

/// dst[i] = the sum over rows of codes[row, first + i], in FP32 and in the order of the rows; all with one scale, f32 [1].
/// `round`: every sum of two is rounded to the codes' format, to nearest even and saturating, under their scale.
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

/// Lion (Chen et al. 2023, Algorithm 2) on a run of elements: the sign of beta1 m + (1 - beta1) g, then m = beta2 m +
/// (1 - beta2) g. norm_squared is read where max_norm clips.
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

/// Muon's momentum, as Nesterov has it: m += (1 - momentum) (g - m), update = g + momentum (m - g).
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
  OpCost cost() const;
};

// Adafactor (Shazeer & Stern 2018) in four passes, between which ranks add up what they have of a matrix. `first`: where
// the part of this rank begins in the flattened matrix or vector; the part may be empty.

/// Sums of the squared gradient by row, f32 [R] or empty, and by column, f32 [C]; 0 where this rank has no part.
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

/// The weights' change: the update, clipped to a root mean square of 1, times the weights' own root mean square.
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
