// Expansion of power-of-two scales per row, per tensor or per block of 128 to MXFP8: each block of 32 gets
// the exponent of its original scale. Codes and values stay the same, bit for bit. GPUs with native MXFP8 but
// without those granularities (compute capability 10.x) run such recipes natively this way.
#pragma once

#include <cstdint>

#include "kernels/numerics/formats.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {

/// Returns true if the format's scales can be rewritten as E8M0 exponents of blocks of 32: FP8 elements with
/// power-of-two FP32 scales.
constexpr bool expands_to_mx(const QuantFormat& format) {
  const Granularity g = format.granularity;
  return (format.dtype == DType::e4m3 || format.dtype == DType::e5m2) &&
         format.scale == ScaleType::f32_pow2 &&
         (g == Granularity::tensor || g == Granularity::row || g == Granularity::block_1x128 ||
          g == Granularity::block_128x128);
}

/// Returns the MXFP8 format of the same codes.
constexpr QuantFormat expanded_to_mx(QuantFormat format) {
  format.granularity = Granularity::block_1x32;
  format.scale = ScaleType::ue8m0;
  format.scale_rounding = ScaleRounding::rceil;
  format.history = {};
  return format;
}

/// Returns the exponent byte of block `block` of 32 in row `row` of a copy [rows, k] whose FP32 scales are
/// laid out as in scale_layout.h. A NaN or infinite scale gives 0xFF, which is NaN.
PRECBENCH_HD inline std::uint8_t expanded_exponent(Granularity g, const float* scales, std::int64_t rows,
                                                   std::int64_t k, std::int64_t row, std::int64_t block) {
  constexpr std::int64_t kBlocksOf128 = 4;
  const bool blocks = g == Granularity::block_1x128 || g == Granularity::block_128x128;
  const float scale = scales[scale_index(g, rows, k, row, blocks ? block / kBlocksOf128 : 0)];
  return static_cast<std::uint8_t>(float_to_bits(scale) >> 23 & 0xFF);
}

/// Returns entry `i` of the expanded buffer of scale_count(block_1x32, rows, k) bytes. It inverts
/// scale_index, so that one thread writes each entry. Padding is zero.
PRECBENCH_HD inline std::uint8_t expanded_entry(Granularity g, const float* scales, std::int64_t rows,
                                                std::int64_t k, std::int64_t i) {
  // Tiles of 128 rows x 4 blocks, in which the rows r, r + 32, r + 64 and r + 96 are adjacent with 4 entries
  // each.
  const std::int64_t blocks = scale_blocks(Granularity::block_1x32, k), tile_columns = (blocks + 3) / 4;
  const std::int64_t tile = i / 512, within = i % 512;
  const std::int64_t row = tile / tile_columns * 128 + within % 16 / 4 * 32 + within / 16;
  const std::int64_t block = tile % tile_columns * 4 + within % 4;
  return row < rows && block < blocks ? expanded_exponent(g, scales, rows, k, row, block) : std::uint8_t{0};
}

}  // namespace precbench
