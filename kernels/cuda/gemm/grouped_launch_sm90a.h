// Shared by the launches of grouped GEMMs: the tile order, and the epilogue's arguments.
#pragma once

#include <algorithm>

#include "kernels/cuda/gemm/epilogue_sm90a.cuh"
#include "kernels/cuda/gemm/grouped_kernels.h"
#include "kernels/cuda/gemm/launch_sm90a.h"

namespace precbench::hopper {

/// Rows of D per band of tiles: a wave on 132 multiprocessors with tiles of 128 x 256 is then about square.
constexpr int kGroupedBandRows = 2048;

template <class S>
GroupedOrder grouped_order(const GroupedGemm& gemm, const GroupedBuffers& on, bool b_mn_major) {
  return {.offsets = on.offsets,
          .counts = on.counts,
          .groups = static_cast<int>(gemm.groups),
          .over_k = gemm.over_k,
          .b_mn_major = b_mn_major,
          .rows = static_cast<int>(gemm.rows),
          .columns = static_cast<int>(gemm.columns),
          .depth = static_cast<int>(gemm.depth),
          .column_tiles = tiles(gemm.columns, S::kColumns),
          .band = kGroupedBandRows / S::kRows};
}

/// Returns the maximum number of tiles under any routing: no more blocks are started.
template <class S>
std::int64_t most_tiles(const GroupedGemm& gemm) {
  const std::int64_t column_tiles = tiles(gemm.columns, S::kColumns);
  if (gemm.over_k) return gemm.groups * tiles(gemm.rows, S::kRows) * column_tiles;
  return std::min(gemm.capacity / kUnitRows, tiles(gemm.capacity, S::kRows) + gemm.groups) * column_tiles;
}

inline EpilogueScales epilogue_scales_of(const GroupedGemm& gemm, const GroupedBuffers& on) {
  return {.a = on.a_scale,
          .b = on.b_scale,
          .a_rows = on.a_scale_rows,
          .b_rows = on.b_scale_rows,
          .b_groups = !gemm.over_k,
          .columns = static_cast<int>(gemm.columns)};
}

inline std::int64_t rows_of_d(const GroupedGemm& gemm) {
  return gemm.over_k ? gemm.groups * gemm.rows : gemm.capacity;
}

inline Before before_of(const GroupedGemm& gemm, const GroupedBuffers& on) {
  return {static_cast<const __nv_bfloat16*>(on.d), static_cast<int>(rows_of_d(gemm)),
          static_cast<int>(gemm.columns)};
}

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, __nv_bfloat16>   ? DType::bf16
                           : std::is_same_v<T, __nv_fp8_e4m3> ? DType::e4m3
                                                              : DType::e5m2;

}  // namespace precbench::hopper
