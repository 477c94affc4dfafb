// Position of a scale in its buffer. Every device uses cuBLASLt's layouts, so that CPU and CUDA buffers
// compare byte for byte and nothing is rearranged before a GEMM.
//
// The buffer belongs to a quantized copy of `rows` rows with contraction dimension (columns) `k`:
//   tensor         one scale
//   row            [rows]
//   1x128, 1x64    [k blocks][rows padded to 4]: the row index is contiguous, the block index outermost
//   128x128        [row blocks][k blocks padded to 4]: the block index along k is contiguous
//   1x32, 1x16, 32x32, 16x16
//                  tiles of 128 rows x 4 blocks, 512 entries each, tile rows outermost; rows padded to 128,
//                  blocks to 4. Inside a tile rows r, r+32, r+64, r+96 are adjacent, 4 entries each. The
//                  scale of a 32x32 or 16x16 block is repeated for each of its rows.
// A cuBLASLt GEMM reads the padding too: whoever writes a buffer must fill the padded entries with zero.
// Stacked weights of experts have the layout of one matrix, or one layout after another (scales_by_expert).
// Source: cuBLAS documentation, "Scaling factors layouts".
#pragma once

#include <cstdint>

#include "kernels/numerics/formats.h"
#include "kernels/numerics/recipe.h"

namespace precbench {

namespace detail {
PRECBENCH_HD constexpr std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return (length + block - 1) / block;
}
PRECBENCH_HD constexpr std::int64_t padded(std::int64_t length, std::int64_t multiple) {
  return blocks_of(length, multiple) * multiple;
}
}  // namespace detail

/// Returns true if the last block along the contraction, and the last rows of a square block, may be partial:
/// their scale is that of the elements that they have. The smaller blocks are formats of hardware, which has
/// whole blocks only.
PRECBENCH_HD constexpr bool may_end_in_partial_block(Granularity g) { return block_length(g) == 128; }

/// Returns true if each expert's scales of stacked weights follow those of the expert before, as in copies of
/// single matrices: a scope of several rows must not hold rows of two experts.
PRECBENCH_HD constexpr bool scales_by_expert(Granularity g) {
  return g == Granularity::tensor || g == Granularity::block_128x128;
}

/// Returns the number of scaling blocks along a contraction dimension of length `k`; 1 if one scale spans all
/// of it.
PRECBENCH_HD constexpr std::int64_t scale_blocks(Granularity g, std::int64_t k) {
  switch (g) {
    case Granularity::block_1x128:
    case Granularity::block_128x128:
      return detail::blocks_of(k, 128);
    case Granularity::block_1x64:
      return detail::blocks_of(k, 64);
    case Granularity::block_1x32:
    case Granularity::block_32x32:
      return detail::blocks_of(k, 32);
    case Granularity::block_1x16:
    case Granularity::block_16x16:
      return detail::blocks_of(k, 16);
    default:
      return 1;
  }
}

/// Returns the entries (not bytes) of the scale buffer, padding included; 0 for Granularity::none.
PRECBENCH_HD constexpr std::int64_t scale_count(Granularity g, std::int64_t rows, std::int64_t k) {
  const std::int64_t nkb = scale_blocks(g, k);
  switch (g) {
    case Granularity::tensor:
      return 1;
    case Granularity::row:
      return rows;
    case Granularity::block_1x128:
    case Granularity::block_1x64:
      return nkb * detail::padded(rows, 4);
    case Granularity::block_128x128:
      return detail::blocks_of(rows, 128) * detail::padded(nkb, 4);
    case Granularity::block_1x32:
    case Granularity::block_32x32:
    case Granularity::block_1x16:
    case Granularity::block_16x16:
      return detail::padded(rows, 128) * detail::padded(nkb, 4);
    default:
      return 0;
  }
}

/// Returns the position of the scale of row `r` (an element row, also for 128x128) and block `kb` along the
/// contraction.
PRECBENCH_HD constexpr std::int64_t scale_index(Granularity g, std::int64_t rows, std::int64_t k,
                                                std::int64_t r, std::int64_t kb) {
  switch (g) {
    case Granularity::row:
      return r;
    case Granularity::block_1x128:
    case Granularity::block_1x64:
      return kb * detail::padded(rows, 4) + r;
    case Granularity::block_128x128:
      return (r / 128) * detail::padded(scale_blocks(g, k), 4) + kb;
    case Granularity::block_1x32:
    case Granularity::block_32x32:
    case Granularity::block_1x16:
    case Granularity::block_16x16: {
      const std::int64_t tile_columns = detail::blocks_of(scale_blocks(g, k), 4);
      const std::int64_t tile = (r / 128) * tile_columns + kb / 4;
      const std::int64_t row = r % 128;
      return tile * 512 + (row % 32) * 16 + (row / 32) * 4 + kb % 4;
    }
    default:
      return 0;
  }
}

}  // namespace precbench
