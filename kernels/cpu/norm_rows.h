// Parts of RMSNorm and LayerNorm on the CPU device: the residual addition before a norm, its weights, and the sums of their
// gradients.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/vector.h"

namespace precbench::cpu {

/// Returns row `r` of a norm's input: x, or x + branch, which becomes op.sum's row. `buffer`: 2 C elements; the result may
/// be in it. `Op`: AddRmsnorm or AddLayernorm.
template <class Op>
const float* norm_input(const Op& op, std::int64_t r, float* buffer) {
  const std::int64_t C = op.x.cols;
  const float* row = load(op.x, r * C, C, buffer);
  if (op.branch.empty()) return row;
  const float* added = load(op.branch, r * C, C, buffer + C);
  for (std::int64_t c = 0; c < C; ++c) buffer[c] = row[c] + added[c];
  store(op.sum, r * C, C, buffer);
  return load(op.sum, r * C, C, buffer);  // the norm reads the stored residual stream
}

/// Returns the C elements of a vector plus an offset; zeros if it is empty.
inline std::vector<float> loaded_row(const Tensor& vector, std::int64_t C, float offset) {
  std::vector<float> values(C);
  if (vector.empty()) return values;
  std::copy_n(load(vector, 0, C, values.data()), C, values.begin());
  for (float& value : values) value += offset;
  return values;
}

/// Stores columns first .. first + C of the sums of all runs, partial [runs, pitch], in a gradient, in the runs' order.
inline void store_sums(const Tensor& gradient, bool accumulate, const std::vector<float>& partial,
                       std::int64_t pitch, std::int64_t C, std::int64_t first) {
  std::vector<float> total = loaded_row(accumulate ? gradient : Tensor{}, C, 0);
  for (std::size_t run = 0; run < partial.size(); run += pitch)
    for (std::int64_t c = 0; c < C; ++c) total[c] += partial[run + first + c];
  store(gradient, 0, C, total.data());
}

}  // namespace precbench::cpu
