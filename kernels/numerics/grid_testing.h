// Grids for tests, from formulas and published tables.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/numerics/format_testing.h"
#include "kernels/numerics/grid.h"

namespace precbench::testing {

/// NF4's levels as QLoRA publishes them (arXiv 2305.14314, appendix E).
inline std::vector<float> nf4_values() {
  return {-1.0f,
          -0.6961928009986877f,
          -0.5250730514526367f,
          -0.39491748809814453f,
          -0.28444138169288635f,
          -0.18477343022823334f,
          -0.09105003625154495f,
          0.0f,
          0.07958029955625534f,
          0.16093020141124725f,
          0.24611230194568634f,
          0.33791524171829224f,
          0.44070982933044434f,
          0.5626170039176941f,
          0.7229568362236023f,
          1.0f};
}

inline std::vector<float> integers(int low, int high) {
  std::vector<float> values;
  for (int i = low; i <= high; ++i) values.push_back(static_cast<float>(i));
  return values;
}

/// Returns the non-negative values of a floating-point format: `mantissa_bits` after the point, exponents from
/// `least` (of the smallest normal) to `largest`, with the `missing` largest mantissas of the last binade left
/// out.
inline std::vector<float> minifloats(int mantissa_bits, int least, int largest, int missing = 0) {
  const int steps = 1 << mantissa_bits;
  std::vector<float> values;
  for (int i = 0; i < steps; ++i) values.push_back(std::ldexp(static_cast<float>(i), least - mantissa_bits));
  for (int exponent = least; exponent <= largest; ++exponent)
    for (int i = 0; i < steps - (exponent == largest ? missing : 0); ++i)
      values.push_back(std::ldexp(static_cast<float>(steps + i), exponent - mantissa_bits));
  return values;
}
inline std::vector<float> e2m1_values() { return minifloats(1, 0, 2); }
inline std::vector<float> e4m3_values() { return minifloats(3, -6, 8, 1); }
/// Powers of two from 2^-2 to 2^4, and 0.
inline std::vector<float> e3m0_values() { return minifloats(0, -2, 4); }

inline QuantFormat grid_format(const std::vector<float>& values, Granularity granularity, ScaleType scale,
                               ScaleRounding scale_rounding = ScaleRounding::none,
                               ElementRounding rounding = ElementRounding::rne) {
  const Grid* grid = make_grid(values);
  QuantFormat format{code_type(*grid), granularity, scale, scale_rounding};
  format.element_rounding = rounding;
  format.grid = grid;
  return format;
}

/// Returns grids and FP8 elements with every type of scale that they take.
inline std::vector<QuantFormat> custom_formats() {
  std::vector<QuantFormat> all;
  const std::vector<float> nf4 = nf4_values(), int4 = integers(-8, 7);
  for (const Granularity g :
       {Granularity::tensor, Granularity::row, Granularity::block_1x128, Granularity::block_128x128})
    for (const ScaleType scale : {ScaleType::f32, ScaleType::f32_pow2})
      all.push_back(grid_format(nf4, g, scale));
  for (const Granularity g : {Granularity::block_1x32, Granularity::block_32x32}) {
    for (const ScaleRounding rounding :
         {ScaleRounding::rceil, ScaleRounding::floor, ScaleRounding::ceil, ScaleRounding::even})
      all.push_back(grid_format(int4, g, ScaleType::ue8m0, rounding));
  }
  for (const Granularity g :
       {Granularity::block_1x16, Granularity::block_16x16, Granularity::block_1x32, Granularity::block_32x32})
    for (const ScaleType scale : {ScaleType::e4m3, ScaleType::ue5m3}) {
      all.push_back(grid_format(nf4, g, scale));
      all.push_back(grid_format(e3m0_values(), g, scale, ScaleRounding::none, ElementRounding::stochastic));
      // One FP8 format, a narrower one, and one that is held in BF16.
      for (const auto& [dtype, dropped] : {ElementFormat{DType::e5m2, 0}, {DType::e4m3, 2}, {DType::e3m4, 0}})
        all.push_back({dtype, g, scale, ScaleRounding::none, dropped});
    }
  return all;
}

}  // namespace precbench::testing
