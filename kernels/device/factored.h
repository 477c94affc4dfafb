// Adafactor helpers shared by all devices: the rows and columns of a rank's part of a matrix, the update of
// its moving averages, and a constant.
#pragma once

#include <cstdint>

#include "kernels/numerics/multiply_add.h"

namespace precbench {

/// Lower bound on the scale of a weight's step: PyTorch's eps2.
inline constexpr float kLeastWeightScale = 1e-3f;

/// The part [first, first + count) of a flattened matrix with rows of `cols`; it may be empty.
struct MatrixPart {
  std::int64_t first, count, cols;

  PRECBENCH_HD constexpr std::int64_t first_row() const { return first / cols; }
  PRECBENCH_HD constexpr std::int64_t rows() const {
    return count == 0 ? 0 : (first + count - 1) / cols + 1 - first_row();
  }
  /// Return the columns [begin, end) of a row that lie in the part.
  PRECBENCH_HD constexpr std::int64_t begin(std::int64_t row) const {
    return first > row * cols ? first - row * cols : 0;
  }
  PRECBENCH_HD constexpr std::int64_t end(std::int64_t row) const {
    const std::int64_t left = first + count - row * cols;
    return left < cols ? left : cols;
  }
  /// Returns the part's index of a row's first matrix element; negative if the part begins after the row's
  /// first column.
  PRECBENCH_HD constexpr std::int64_t at(std::int64_t row) const { return row * cols - first; }
};

/// Returns `average` moved towards the mean, sum * factor, by the weight `part` in [0, 1]; with part 1 the mean itself.
PRECBENCH_HD constexpr float moved_average(float average, float sum, float factor, float part) {
  const float distance = multiply_add(sum, factor, -average);
  return part < 0.5f ? multiply_add(part, distance, average)
                     : multiply_add(sum, factor, -(distance * (1 - part)));
}

}  // namespace precbench
