// Element formats by their values: a grid is a list of up to 256 numbers, and a code is a place in it. Any
// format of at most 8 bits can be written so, for example NF4, INT4 or E3M0 in recipe files.
//
// A cast rounds to the nearest value and saturates at both ends. Of two equally near values it takes the one
// an even number of places from 0, which is "ties to even" for floating-point and integer grids. A grid has no
// NaN: the code of NaN is that of 0, and only the scale carries it (custom_format.h), as in FP4.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/numerics/formats.h"

namespace precbench {

inline constexpr int kMostGridValues = 256;

/// The values of a grid and what a cast needs of them. Fits a kernel's parameters.
struct Grid {
  std::uint16_t count = 0;
  std::uint8_t zero = 0;               ///< place of 0
  std::uint8_t mantissa_bits = 0;      ///< log2 of the number of values in the binade of `max`, rounded up
  float max = 0;                       ///< what the amax is scaled to: the smaller of both ends' magnitudes
  float values[kMostGridValues] = {};  ///< ascending
  /// bounds[i]: the largest FP32 number that is rounded to values[i] rather than values[i + 1].
  float bounds[kMostGridValues - 1] = {};

  /// Returns true if the grid has -x for every x.
  bool mirrored() const;
};

/// Returns the grid of these values. If none is negative, the negative ones are added. Equal grids have the
/// same address, which stays valid. Throws InvalidInput, naming the place of a bad value: "3: 0.5 is not above
/// 1". Values must be ascending and finite, with 0 and a value on both sides, at most 256, and at least 2^-24
/// of the largest apart, so that midpoints are exact.
const Grid* make_grid(std::vector<float> values);

/// Returns the type of the codes of a grid: four bits for up to 16 values, else a byte.
constexpr DType code_type(const Grid& grid) { return grid.count <= 16 ? DType::grid4 : DType::grid; }

/// Returns the code of x.
PRECBENCH_HD constexpr std::uint8_t grid_encode(const Grid& grid, float x) {
  int place = 0;
  for (int step = kMostGridValues / 2; step > 0; step /= 2)
    if (place + step < grid.count && x > grid.bounds[place + step - 1]) place += step;
  return static_cast<std::uint8_t>(abs_bits(x) > detail::kInfBits ? grid.zero : place);
}

/// Rounds up with a probability equal to the distance from the value below over that between both neighbours,
/// else down: exact in expectation between the ends. `random`: 32 bits.
PRECBENCH_HD constexpr std::uint8_t grid_encode_stochastic(const Grid& grid, float x, std::uint32_t random) {
  int place = 0;  // of the value below
  for (int step = kMostGridValues / 2; step > 0; step /= 2)
    if (place + step < grid.count && x >= grid.values[place + step]) place += step;
  if (abs_bits(x) > detail::kInfBits) return grid.zero;
  if (place + 1 == grid.count || !(x > grid.values[place])) return static_cast<std::uint8_t>(place);
  const double below = static_cast<double>(grid.values[place]);
  const double gap = static_cast<double>(grid.values[place + 1]) - below;
  const double draw = static_cast<double>(random) * gap;
  return static_cast<std::uint8_t>(place + (draw < (static_cast<double>(x) - below) * 0x1p32 ? 1 : 0));
}

PRECBENCH_HD constexpr float grid_decode(const Grid& grid, std::uint8_t code) { return grid.values[code]; }

}  // namespace precbench
