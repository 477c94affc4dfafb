// transpose_codes by its definition: the cast of a code's value with its column's new scale.
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {

void CpuDevice::do_transpose_codes(const ops::TransposeCodes& op) {
  constexpr std::int64_t kSide = 128;
  constexpr Granularity g = Granularity::block_1x128;
  const std::int64_t rows = op.src.data.rows, cols = op.src.data.cols, blocks = cols / kSide;
  const auto* codes = op.src.data.as<std::uint8_t>();
  const float* scales = op.src.scale.as<float>();
  // One tile of 128 x 128 with a scale per row; all its columns get the same new scale.
  cpu::for_rows(threads_, rows / kSide * blocks, 0, [&](std::int64_t tile, float*) {
    const std::int64_t row_block = tile / blocks, block = tile % blocks;
    const float* of_rows = scales + scale_index(g, rows, cols, row_block * kSide, block);
    float largest = 0;
    for (std::int64_t r = 0; r < kSide; ++r)
      if (std::isfinite(of_rows[r])) largest = std::max(largest, of_rows[r]);
    if (largest == 0) largest = 1;
    for (std::int64_t r = 0; r < kSide; ++r) {
      const float factor = of_rows[r] / largest;
      const std::uint8_t* from = codes + (row_block * kSide + r) * cols + block * kSide;
      std::uint8_t cast[kSide];
      for (std::int64_t c = 0; c < kSide; ++c) cast[c] = e4m3_encode(e4m3_decode(from[c]) * factor);
      std::uint8_t* to = op.dst.data.as<std::uint8_t>() + block * kSide * rows + row_block * kSide + r;
      for (std::int64_t c = 0; c < kSide; ++c)
        to[c * rows] = std::isfinite(of_rows[r]) ? cast[c] : e4m3_encode(NAN);
    }
    float* to_scales = op.dst.scale.as<float>() + scale_index(g, cols, rows, block * kSide, row_block);
    for (std::int64_t c = 0; c < kSide; ++c) to_scales[c] = largest;
  });
}

}  // namespace precbench
