// Positions of q, k and v within the fused qkv matrix.
#pragma once

#include "kernels/device/operands.h"
#include "kernels/numerics/linear_role.h"

namespace precbench {

/// Row range of one part in qkv's weight or gradient, which is also its column range in the output.
struct QkvPart {
  std::int64_t first, count;

  Tensor rows_of(const Tensor& matrix) const { return matrix.slice_rows(first, count); }
};

inline QkvPart part_of(const AttentionShape& shape, LinearRole part) {
  const std::int64_t q = shape.q_width(), kv = shape.kv_width() / 2;
  const int place = place_in_qkv(part);
  return place == 0 ? QkvPart{0, q} : QkvPart{q + (place - 1) * kv, kv};
}

}  // namespace precbench
