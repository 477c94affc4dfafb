// How a tile of D leaves the registers in a GEMM for Hopper: scales of whole rows, what was in D before, rounding, and to
// global memory, without a wait: a warp's stores are on their way while its warpgroup begins the next tile.
//
//   FP32: four lanes hold 8 numbers of a row, one sector of 32 bytes, and store them, or have them added in L2, from where
//         they are
//   BF16: they would hold half a sector; 16 rows of 64 columns go through 2 KiB of shared memory that belong to the warp,
//         by stmatrix, and a lane stores 16 bytes
//
// A warpgroup holds one or several units of 64 rows of its tile, unit `half * 2 + warpgroup`; rows behind the end of a group
// are left alone.
#pragma once

#include "kernels/cuda/gemm/tile_order_sm90a.cuh"
#include "kernels/cuda/hopper/pipeline.cuh"

namespace precbench::hopper {

constexpr int kMathWarpgroups = 2;
constexpr int kThreads = (kMathWarpgroups + 1) * kWarpgroup;
constexpr int kUnitRows = 64;                       ///< of D: those of an instruction
constexpr int kDColumns = kTileRowBytes / 2;        ///< of BF16 that go through shared memory at one time
constexpr int kDBytes = kUnitRows * kTileRowBytes;  ///< of shared memory for a warpgroup's

/// What happens to D.
enum class Store { bf16, bf16_add, f32, f32_add };
constexpr bool is_f32(Store store) { return store == Store::f32 || store == Store::f32_add; }
constexpr bool adds(Store store) { return store == Store::bf16_add || store == Store::f32_add; }

/// D, in FP32 or BF16.
struct Output {
  void* data;
  int rows, columns;
};

/// Scales that belong to whole rows of A and of B, or to a tensor: they wait until a sum is complete.
struct EndScales {
  const float *a, *b;
  bool a_rows, b_rows;  ///< one for each row of D, and for each column of each group's D; else one
  bool b_groups;        ///< not b_rows: one for each group
  int columns;          ///< of D
};

/// `row`: of D, of the thread's first; `rows`: where they end.
template <int kSums>
__device__ inline void scale_ends(float (&total)[kSums], const EndScales& scales, const Tile& tile, int row,
                                  int rows, int lane) {
  const float a0 = row < rows ? scales.a[scales.a_rows ? row : 0] : 0,
              a1 = row + 8 < rows ? scales.a[scales.a_rows ? row + 8 : 0] : 0;
  float2 b = {};
  if (!scales.b_rows) b.x = b.y = scales.b[scales.b_groups ? tile.group : 0];
  const float* columns = scales.b + tile.b_scale;
#pragma unroll
  for (int group = 0; group < kSums / 4; ++group) {
    const int column = group * 8 + lane % 4 * 2;
    if (scales.b_rows && tile.d_column + column < scales.columns)
      b = __ldg(reinterpret_cast<const float2*>(columns + column));
    total[4 * group] *= a0;
    total[4 * group + 1] *= a0;
    total[4 * group + 2] *= a1;
    total[4 * group + 3] *= a1;
    total[4 * group] *= b.x;
    total[4 * group + 1] *= b.y;
    total[4 * group + 2] *= b.x;
    total[4 * group + 3] *= b.y;
  }
}

/// What is in D already is added in FP32, before the only rounding. `row`: of the thread's first; `rows`: where they end.
template <int kSums>
__device__ inline void add_bf16(float (&total)[kSums], const Output& d, int row, int rows, int first_column,
                                int lane) {
#pragma unroll
  for (int below = 0; below < 2; ++below, row += 8) {
    if (row >= rows) continue;
    const auto* from = static_cast<const __nv_bfloat16*>(d.data) + static_cast<std::int64_t>(row) * d.columns;
#pragma unroll
    for (int group = 0; group < kSums / 4; ++group) {
      const int column = first_column + group * 8 + lane % 4 * 2;
      if (column >= d.columns) continue;
      const float2 old = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from + column));
      total[4 * group + 2 * below] += old.x;
      total[4 * group + 2 * below + 1] += old.y;
    }
  }
}

template <bool kAdd, int kSums>
__device__ inline void store_f32(const float (&total)[kSums], const Output& d, int row, int rows,
                                 int first_column, int lane) {
#pragma unroll
  for (int below = 0; below < 2; ++below, row += 8) {
    if (row >= rows) continue;
    float* to = static_cast<float*>(d.data) + static_cast<std::int64_t>(row) * d.columns;
#pragma unroll
    for (int group = 0; group < kSums / 4; ++group) {
      const int column = first_column + group * 8 + lane % 4 * 2;
      if (column >= d.columns) continue;
      const float low = total[4 * group + 2 * below], high = total[4 * group + 2 * below + 1];
      if constexpr (kAdd)
        asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to + column), "f"(low),
                     "f"(high)
                     : "memory");
      else
        *reinterpret_cast<float2*>(to + column) = make_float2(low, high);
    }
  }
}

template <int kSums>
__device__ inline void store_bf16(std::uint8_t* room, const float (&total)[kSums], const Output& d,
                                  int first_row, int rows, int first_column, int thread) {
  const int lane = thread % 32, piece = lane % 8;
#pragma unroll
  for (int first = 0; first < 2 * kSums; first += kDColumns) {
    __syncwarp();  // its lanes have read what was there
    write_bf16_box<kDColumns>(room, total, first, thread);
    __syncwarp();
    const int column = first_column + first + piece * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int within = thread / 32 * 16 + i * 4 + lane / 8, row = first_row + within;
      const uint4 eight =
          *reinterpret_cast<const uint4*>(room + within * kTileRowBytes + (piece ^ within % 8) * 16);
      if (row < rows && column < d.columns)
        *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(d.data) +
                                  static_cast<std::int64_t>(row) * d.columns + column) = eight;
    }
  }
}

/// A warpgroup's totals to D. `room`: its kDBytes.
template <class S>
__device__ inline void store(std::uint8_t* room, const EndScales& scales, const Output& d, const Tile& tile,
                             int warpgroup, float (&total)[S::kHalves][S::kSums]) {
  int thread;  // asked for again: kept since the start, it would cost the products a register that they need
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  thread %= kWarpgroup;
  const int lane = thread % 32, rows = min(d.rows, tile.d_row + tile.rows);
#pragma unroll
  for (int half = 0; half < S::kHalves; ++half) {
    const int unit = half * kMathWarpgroups + warpgroup;
    if (unit * kUnitRows >= tile.rows) continue;
    const int first = tile.d_row + unit * kUnitRows, row = first + thread / 32 * 16 + lane / 4;
    if constexpr (S::kEnds) scale_ends(total[half], scales, tile, row, rows, lane);
    if constexpr (S::kStore == Store::bf16_add) add_bf16(total[half], d, row, rows, tile.d_column, lane);
    if constexpr (is_f32(S::kStore))
      store_f32<S::kStore == Store::f32_add>(total[half], d, row, rows, tile.d_column, lane);
    else
      store_bf16(room, total[half], d, first, rows, tile.d_column, thread);
  }
}

}  // namespace precbench::hopper
