// What Adafactor's kernels share on every device: which rows and columns a rank's part of a matrix has, how its averages
// move, and a constant.
#pragma once

#include <cstdint>

#include "kernels/numerics/formats.h"

namespace precbench {

/// The least scale of a weight's step: PyTorch's eps2.
inline constexpr float kLeastWeightScale = 1e-3f;

/// The part [first, first + count) of a flattened matrix with rows of `cols`; it may be empty.
struct MatrixPart {
  std::int64_t first, count, cols;

  PRECBENCH_HD constexpr std::int64_t first_row() const { return first / cols; }
  PRECBENCH_HD constexpr std::int64_t rows() const {
    return count == 0 ? 0 : (first + count - 1) / cols + 1 - first_row();
  }
  /// The columns [begin, end) of a row that are in it.
  PRECBENCH_HD constexpr std::int64_t begin(std::int64_t row) const {
    return first > row * cols ? first - row * cols : 0;
  }
  PRECBENCH_HD constexpr std::int64_t end(std::int64_t row) const {
    const std::int64_t left = first + count - row * cols;
    return left < cols ? left : cols;
  }
  /// Where a row's first element of the matrix lies in the part; below 0 where its first columns are not in it.
  PRECBENCH_HD constexpr std::int64_t at(std::int64_t row) const { return row * cols - first; }
};

/// `average`, of which `part` is made new by `mean`; at a part of 1 the mean itself.
PRECBENCH_HD constexpr float moved_average(float average, float mean, float part) {
  return part < 0.5f ? average + part * (mean - average) : mean - (mean - average) * (1 - part);
}

}  // namespace precbench
