// Formats for tests and benchmarks of quantizers: those that recipes use, every FP8 format, and narrower
// ones.
#pragma once

#include <vector>

#include "kernels/numerics/recipe.h"

namespace precbench::testing {

inline constexpr QuantFormat kTensorE4m3{DType::e4m3, Granularity::tensor, ScaleType::f32};
inline constexpr QuantFormat kTensorE5m2{DType::e5m2, Granularity::tensor, ScaleType::f32};
inline constexpr QuantFormat kTensorE4m1{DType::e4m3, Granularity::tensor, ScaleType::f32,
                                         ScaleRounding::none, 2};
inline constexpr QuantFormat kRowE4m2{DType::e4m3, Granularity::row, ScaleType::f32, ScaleRounding::none, 1};
inline constexpr QuantFormat kTensorE5m3{DType::e5m3, Granularity::tensor, ScaleType::f32};
inline constexpr QuantFormat kRowE3m4{DType::e3m4, Granularity::row, ScaleType::f32_pow2};
inline constexpr QuantFormat kMxE3m3{DType::e3m3, Granularity::block_1x32, ScaleType::ue8m0,
                                     ScaleRounding::floor};
inline constexpr QuantFormat kRow{DType::e4m3, Granularity::row, ScaleType::f32_pow2};
inline constexpr QuantFormat kRowExact{DType::e5m2, Granularity::row, ScaleType::f32};
inline constexpr QuantFormat kBlock{DType::e4m3, Granularity::block_1x128, ScaleType::f32};
inline constexpr QuantFormat kBlockPow2{DType::e4m3, Granularity::block_1x128, ScaleType::f32_pow2};
inline constexpr QuantFormat kSquare{DType::e4m3, Granularity::block_128x128, ScaleType::f32};
inline constexpr QuantFormat kMx{DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0,
                                 ScaleRounding::rceil};

inline constexpr QuantFormat kMxSquare{DType::e4m3, Granularity::block_32x32, ScaleType::ue8m0,
                                       ScaleRounding::rceil};

/// Returns the format of an NVFP4 operand.
constexpr QuantFormat nvfp4_format(Granularity granularity, ElementRounding rounding = ElementRounding::rne,
                                   Transform transform = {}) {
  QuantFormat format{DType::e2m1, granularity, ScaleType::e4m3};
  format.element_rounding = rounding;
  format.transform = transform;
  return format;
}

/// Returns every NVFP4 format.
inline std::vector<QuantFormat> nvfp4_formats() {
  std::vector<QuantFormat> all;
  for (const ElementRounding rounding : {ElementRounding::rne, ElementRounding::stochastic}) {
    all.push_back(nvfp4_format(Granularity::block_16x16, rounding));
    for (const Transform transform : {Transform{}, Transform{16}, Transform{16, Signs::te}})
      all.push_back(nvfp4_format(Granularity::block_1x16, rounding, transform));
  }
  return all;
}

/// Formats of MXFP4 operands, Quartet's fprop, Quartet II's fprop and its backward.
constexpr QuantFormat mxfp4_format(Transform transform = {},
                                   ElementRounding rounding = ElementRounding::rne) {
  QuantFormat format{DType::e2m1, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::floor};
  format.element_rounding = rounding;
  format.transform = transform;
  return format;
}
/// Returns MXFP4 with stochastic rounding that never clips.
constexpr QuantFormat unbiased_mxfp4_format(Transform transform = {}) {
  QuantFormat format = mxfp4_format(transform, ElementRounding::stochastic);
  format.element_scale = 0.75f;
  return format;
}
// Taken from the recipe table, so that tests of these formats cover the recipes.
inline QuantFormat quest_format() { return find_recipe("quartet").fprop.a; }
inline QuantFormat four_over_six_format() { return find_recipe("quartet2").fprop.a; }
inline QuantFormat eden_format() { return find_recipe("quartet2").dgrad.a; }
/// Returns EDEN with one correction for all elements of a transform, as in the authors' Python.
inline QuantFormat eden128_format() {
  QuantFormat format = eden_format();
  format.eden = 128;
  return format;
}

/// Returns the FP4 formats other than NVFP4.
inline std::vector<QuantFormat> other_fp4_formats() {
  return {mxfp4_format(),
          mxfp4_format({}, ElementRounding::stochastic),
          unbiased_mxfp4_format({64, Signs::gemm}),
          quest_format(),
          four_over_six_format(),
          eden_format(),
          eden128_format()};
}

/// e4m3 and e5m2, their variants with fewer mantissa bits (e4m2, e4m1, e5m1), and the formats held in BF16.
struct ElementFormat {
  DType dtype;
  std::uint8_t dropped_bits;
};
inline constexpr ElementFormat kElements[] = {{DType::e4m3, 0}, {DType::e5m2, 0}, {DType::e4m3, 1},
                                              {DType::e4m3, 2}, {DType::e5m2, 1}, {DType::e5m3, 0},
                                              {DType::e3m4, 0}, {DType::e3m3, 0}, {DType::e4m4, 0}};

inline std::vector<QuantFormat> quantized_formats() {
  std::vector<QuantFormat> all;
  for (const auto& [dtype, dropped] : kElements) {
    for (Granularity g :
         {Granularity::tensor, Granularity::row, Granularity::block_1x128, Granularity::block_128x128})
      for (ScaleType scale : {ScaleType::f32, ScaleType::f32_pow2})
        all.push_back({dtype, g, scale, ScaleRounding::none, dropped});
    for (ScaleRounding rounding :
         {ScaleRounding::rceil, ScaleRounding::floor, ScaleRounding::ceil, ScaleRounding::even})
      for (Granularity g : {Granularity::block_1x32, Granularity::block_32x32})
        all.push_back({dtype, g, ScaleType::ue8m0, rounding, dropped});
  }
  return all;
}

}  // namespace precbench::testing
