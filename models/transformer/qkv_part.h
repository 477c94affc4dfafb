// Where q, k and v stand in what they share.
#pragma once

#include "kernels/device/operands.h"
#include "kernels/numerics/linear_role.h"

namespace precbench {

/// Rows of qkv's matrix, of weights or of gradients, and columns of its output.
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
