// For tests of quantizers: every FP8 format that an operand can have.
#pragma once

#include <vector>

#include "kernels/numerics/recipe.h"

namespace precbench::testing {

inline std::vector<QuantFormat> quantized_formats() {
  std::vector<QuantFormat> all;
  for (DType dtype : {DType::e4m3, DType::e5m2}) {
    for (Granularity g :
         {Granularity::tensor, Granularity::row, Granularity::block_1x128, Granularity::block_128x128})
      for (ScaleType scale : {ScaleType::f32, ScaleType::f32_pow2}) all.push_back({dtype, g, scale});
    for (ScaleRounding rounding :
         {ScaleRounding::rceil, ScaleRounding::floor, ScaleRounding::ceil, ScaleRounding::even})
      all.push_back({dtype, Granularity::block_1x32, ScaleType::ue8m0, rounding});
  }
  return all;
}

}  // namespace precbench::testing
