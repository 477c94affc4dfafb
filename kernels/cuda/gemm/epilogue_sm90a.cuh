// Epilogue of a Hopper GEMM: per-row scales, the previous contents of D, rounding, and the store through
// shared memory by TMA.
//
// A warpgroup holds one or several units of 64 rows of its tile; units after the end of a group are skipped.
#pragma once

#include "kernels/cuda/gemm/tile_order_sm90a.cuh"
#include "kernels/cuda/hopper/pipeline.cuh"
#include "kernels/cuda/hopper/tma.cuh"

namespace precbench::hopper {

constexpr int kMathWarpgroups = 2;
constexpr int kThreads = (kMathWarpgroups + 1) * kWarpgroup;
constexpr int kUnitRows = 64;                       ///< rows of D in one box: M of an instruction
constexpr int kDBytes = kUnitRows * kTileRowBytes;  ///< per box

/// Returns the unit of a warpgroup's `half`. If a group may end within a tile, units alternate between the
/// warpgroups, so that both have some.
template <class S, class Order>
__device__ constexpr int unit_of(int warpgroup, int half) {
  return Order::kReadsGroups ? half * kMathWarpgroups + warpgroup : warpgroup * S::kHalves + half;
}

/// Output dtype of D and accumulation.
enum class Store { bf16, bf16_add, f32, f32_add };
constexpr bool is_f32(Store store) { return store == Store::f32 || store == Store::f32_add; }
constexpr bool adds(Store store) { return store == Store::bf16_add || store == Store::f32_add; }

/// D, if a BF16 sum is added to it.
struct Before {
  const __nv_bfloat16* data;
  int rows, columns;
};

/// Scales per row of A and of B, or per tensor: applied when a sum is complete.
struct EpilogueScales {
  const float *a, *b;
  bool a_rows, b_rows;  ///< one per row of D, and per column of each group's D; else one
  bool b_groups;        ///< without b_rows: one per group
  int columns;          ///< of D
};

/// Scales of a warpgroup's part of a tile, in shared memory: one per row and column, whatever their
/// granularity.
template <bool kEpilogueScales, int kHalves, int kColumns>
struct TileEpilogueScales {};
template <int kHalves, int kColumns>
struct TileEpilogueScales<true, kHalves, kColumns> {
  float a[kHalves][kUnitRows];
  alignas(8) float b[kColumns];
};

template <int kFloats>
__device__ inline void copy_later(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from),
               "n"(kFloats * sizeof(float))
               : "memory");
}

/// Starts loading a tile's scales before its wgmmas. With registers full of sums, the epilogue would
/// otherwise wait for memory once for every few of them.
template <class S, class Order>
__device__ inline void load_epilogue_scales(typename S::TileScales& epilogue_scales,
                                            const EpilogueScales& scales, const Tile& tile, int warpgroup,
                                            int thread) {
  if constexpr (S::kEpilogueScales) {
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half) {
      const int row = unit_of<S, Order>(warpgroup, half) * kUnitRows;
      if (thread < kUnitRows && (!Order::kReadsGroups || row < tile.rows))
        copy_later<1>(&epilogue_scales.a[half][thread],
                      scales.a + (scales.a_rows ? tile.d_row + row + thread : 0));
    }
#pragma unroll
    for (int column = 2 * thread; column < S::kColumns; column += 2 * kWarpgroup) {
      if (!scales.b_rows) {
        const float* const b = scales.b + (scales.b_groups ? tile.group : 0);
        copy_later<1>(&epilogue_scales.b[column], b);
        copy_later<1>(&epilogue_scales.b[column + 1], b);
      } else if (tile.d_column + column < scales.columns) {
        copy_later<2>(&epilogue_scales.b[column], scales.b + tile.b_scale + column);
      }
    }
  }
}

/// Waits until the tile's scales are there for the warpgroup.
template <class S>
__device__ inline void wait_epilogue_scales(int warpgroup) {
  if constexpr (S::kEpilogueScales) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    named_barrier_sync(1 + warpgroup, kWarpgroup);
  }
}

template <int kSums>
__device__ inline void apply_epilogue_scales(float (&total)[kSums], const float (&a)[kUnitRows],
                                             const float* b, int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  const float a0 = a[row], a1 = a[row + 8];
#pragma unroll
  for (int group = 0; group < kSums / 4; ++group) {
    const auto of_columns = *reinterpret_cast<const float2*>(b + group * 8 + lane % 4 * 2);
    total[4 * group] *= a0;
    total[4 * group + 1] *= a0;
    total[4 * group + 2] *= a1;
    total[4 * group + 3] *= a1;
    total[4 * group] *= of_columns.x;
    total[4 * group + 1] *= of_columns.y;
    total[4 * group + 2] *= of_columns.x;
    total[4 * group + 3] *= of_columns.y;
  }
}

/// Adds the previous contents of D in FP32, before the only rounding.
template <int kSums>
__device__ inline void add_bf16(float (&total)[kSums], const Before& before, int first_row,
                                int first_column) {
  int thread;  // read again: keeping it would take a register from the wgmmas
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  thread %= kWarpgroup;
  const int lane = thread % 32;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int row = first_row + thread / 32 * 16 + lane / 4 + below * 8;
    if (row >= before.rows) continue;
    const __nv_bfloat16* from = before.data + static_cast<std::int64_t>(row) * before.columns;
#pragma unroll
    for (int group = 0; group < kSums / 4; ++group) {
      const int column = first_column + group * 8 + lane % 4 * 2;
      if (column >= before.columns) continue;
      const float2 old = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from + column));
      total[4 * group + 2 * below] += old.x;
      total[4 * group + 2 * below + 1] += old.y;
    }
  }
}

/// Prefetches the previous contents of a tile's part of D into L2: one box with each of the tile's last
/// blocks of k, of which this is number `block`. Tiles of few blocks are memory-bound anyway, and would only
/// fill L2 more.
template <class S>
__device__ inline void prefetch_before(const CUtensorMap* map, const Tile& tile, int block) {
  constexpr int kAcross = S::kColumns / S::kDColumns, kBoxes = kAcross * S::kRows / kUnitRows;
  const int box = block + kBoxes - tile.k_blocks, row = box / kAcross * kUnitRows;
  if (tile.k_blocks >= S::kPrefetchFrom && box >= 0 && row < tile.rows)
    tma_prefetch_2d(map, tile.d_row + row, tile.d_column + box % kAcross * S::kDColumns);
}

/// Writes a warpgroup's totals to D, box after box through `boxes`. Its first thread issues the copies and
/// waits for earlier ones. `epilogue_scales`: loaded by load_epilogue_scales.
template <class S, class Order>
__device__ inline void store(std::uint8_t (&boxes)[S::kDBoxes][kDBytes], const CUtensorMap* map,
                             const typename S::TileScales& epilogue_scales, const Before& before,
                             const Tile& tile, int warpgroup, int thread,
                             float (&total)[S::kHalves][S::kSums]) {
  constexpr int kBoxes = S::kColumns / S::kDColumns;
  wait_epilogue_scales<S>(warpgroup);
#pragma unroll
  for (int half = 0; half < S::kHalves; ++half) {
    const int unit = unit_of<S, Order>(warpgroup, half), row = tile.d_row + unit * kUnitRows;
    if (Order::kReadsGroups && unit * kUnitRows >= tile.rows) continue;
    if constexpr (S::kEpilogueScales)
      apply_epilogue_scales(total[half], epilogue_scales.a[half], epilogue_scales.b, thread);
    if constexpr (S::kStore == Store::bf16_add) add_bf16(total[half], before, row, tile.d_column);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      std::uint8_t* box = boxes[(half * kBoxes + i) % S::kDBoxes];
      if (thread == 0) tma_store_wait_group_read<S::kDBoxes - 1>();
      named_barrier_sync(1 + warpgroup, kWarpgroup);
      if constexpr (is_f32(S::kStore))
        write_f32_box<S::kDColumns>(box, total[half], i * S::kDColumns, thread);
      else
        write_bf16_box<S::kDColumns>(box, total[half], i * S::kDColumns, thread);
      fence_proxy_async();
      named_barrier_sync(1 + warpgroup, kWarpgroup);
      if (thread == 0) {
        const int column = tile.d_column + i * S::kDColumns;
        if constexpr (S::kStore == Store::f32_add)
          tma_reduce_add_2d(map, row, column, box);
        else
          tma_store_2d(map, row, column, box);
        tma_store_commit_group();
      }
    }
  }
}

}  // namespace precbench::hopper
