// The two kernels that run over any Source in tiles (tile.cuh).
#pragma once

#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/cast_tile.cuh"

namespace precbench::cuda {

/// Calls use(i, outputs of the square's row i) for all rows, with batched loads.
template <bool kFull, class Source, class Use>
__device__ inline void for_square(const Source& source, std::int64_t row, std::int64_t col, Use&& use) {
  const typename Source::Column column = source.template column<kFull>(col);
#pragma unroll
  for (int first = 0; first < kSquare; first += Source::kBatch) {
    typename Source::Raw raw[Source::kBatch];
#pragma unroll
    for (int i = 0; i < Source::kBatch; ++i) raw[i] = source.template fetch<kFull>(row + first + i, col);
#pragma unroll
    for (int i = 0; i < Source::kBatch; ++i) {
      Bf16x8 made[Source::kOutputs];
      source.make(made, raw[i], column, row + first + i, col);
      // Rows outside are 0 whatever the columns' constants are, so that they raise no amax.
      if (!kFull && row + first + i >= source.rows)
        for (Bf16x8& m : made) m = Bf16x8{};
      use(first + i, made);
    }
  }
}

/// Computes the origin of a tile from its number. Tiles follow each other along rows, or down a column if the
/// Source requests it: then concurrent tiles read the same few columns, which helps if rows are read more
/// than once.
template <class Source>
__device__ inline void place_tile(unsigned tile, unsigned col_tiles, unsigned tiles, std::int64_t& row0,
                                  std::int64_t& col0) {
  unsigned row = tile / col_tiles, col = tile % col_tiles;
  if constexpr (requires { typename Source::ColumnByColumn; }) {
    const unsigned row_tiles = max(1u, tiles / col_tiles);
    row = tile % row_tiles, col = tile / row_tiles;
  }
  row0 = static_cast<std::int64_t>(row) * kTile;
  col0 = static_cast<std::int64_t>(col) * kTile;
}

/// Returns true if nobody reads this row of a grouped Source and those after it.
template <class Source>
__device__ inline bool behind_groups(const Source& source, std::int64_t row) {
  if constexpr (requires { source.end; })
    return row >= *source.end;
  else
    return false;
}

/// A persistent grid: block b has the tiles b, b + gridDim, ...
template <class Source, bool kFull>
__global__ void __launch_bounds__(kTileThreads, Source::kOutputs == 1 ? 4 : 2)
    amax_tiles(const Source source, const __grid_constant__ TileOutputs<Source::kOutputs> outputs,
               int col_tiles, int tiles) {
  wait_for_work_before();
  constexpr int kOutputs = Source::kOutputs;
  __shared__ alignas(16) std::uint16_t row_max[kOutputs][kTile];
  __shared__ alignas(16) std::uint16_t col_max[kOutputs][kTileWarps][kTile];
  __shared__ std::uint32_t tensor_max[kOutputs][kWarp];
  const ThreadPlace at;
  std::uint32_t largest[kOutputs] = {};  // over all tiles, of each half
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    std::int64_t row0, col0;
    place_tile<Source>(tile, col_tiles, tiles, row0, col0);
    if (behind_groups(source, row0)) continue;
    std::uint32_t rows[kOutputs][4] = {};
    Bf16x8 cols[kOutputs] = {};
    for_square<kFull>(source, row0 + at.row(), col0 + at.col(), [&](int i, const Bf16x8(&made)[kOutputs]) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        const std::uint32_t of_row = max_of_pairs(made[o]);
        largest[o] = max_of_pairs(largest[o], of_row);
        if (outputs.of[o].row_amax) rows[o][i / 2] |= max_half(of_row) << (16 * (i % 2));
        if (outputs.of[o].col_amax) {
#pragma unroll
          for (int p = 0; p < 4; ++p)
            cols[o].pair[p] = max_of_pairs(cols[o].pair[p], made[o].pair[p] & kNoSigns);
        }
      }
    });
    bool of_tile = false;  // the same in every thread
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      of_tile = of_tile || outputs.of[o].row_amax || outputs.of[o].col_amax;
      if (outputs.of[o].row_amax) {
#pragma unroll
        for (int p = 0; p < 4; ++p)
#pragma unroll
          for (int step = 1; step < 16; step *= 2)
            rows[o][p] = max_of_pairs(rows[o][p], __shfl_xor_sync(kAllLanes, rows[o][p], step));
        if (at.lane == 0)
          store_vector(&row_max[o][at.row()], {{rows[o][0], rows[o][1], rows[o][2], rows[o][3]}});
      }
      if (outputs.of[o].col_amax) {
#pragma unroll
        for (int p = 0; p < 4; ++p)
          cols[o].pair[p] = max_of_pairs(cols[o].pair[p], __shfl_xor_sync(kAllLanes, cols[o].pair[p], 16));
        if (at.half == 0) store_vector(&col_max[o][at.warp][at.col()], cols[o]);
      }
    }
    if (!of_tile) continue;
    __syncthreads();
    const int t = threadIdx.x % kTile;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const TileOutput& out = outputs.of[o];
      if (out.row_amax && threadIdx.x < kTile && (kFull || row0 + t < source.rows))
        atomicMax(out.row_amax + row0 + t, static_cast<std::int32_t>(row_max[o][t]) << 16);
      if (out.col_amax && threadIdx.x >= kTile && (kFull || col0 + t < source.cols)) {
        std::uint32_t all = 0;
#pragma unroll
        for (int w = 0; w < kTileWarps; ++w) all = max(all, static_cast<std::uint32_t>(col_max[o][w][t]));
        const CopyArgs& copy = out.columnwise;
        const int group = copy.group_offsets ? group_at(copy, row0) : 0;
        if (!copy.group_offsets || group < copy.groups)
          atomicMax(out.col_amax + group * copy.rows + out.first_col + col0 + t,
                    static_cast<std::int32_t>(all << 16));
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const TensorAmax& tensor = outputs.of[o].tensor;
    if (!tensor.result) continue;
    const std::uint32_t all = block_max(max_half(largest[o]), tensor_max[o]);
    if (threadIdx.x == 0) tensor.parts[tensor.first + blockIdx.x] = all << 16;
  }
}

/// Squares of the second and later outputs wait in dynamic shared memory, 16 bytes per thread and row: 64 KB
/// for the three of swiglu_backward, so that two blocks fit a multiprocessor. With three blocks that
/// recompute the third output, their inputs, 38 MB on an H200, would exceed L2.
template <int kOutputs>
inline constexpr int kStashBytes = (kOutputs - 1) * kSquare* kTileThreads * 16;

template <class Source, TileCase kCase>
__global__ void __launch_bounds__(kTileThreads, Source::kOutputs == 1 ? 3 : 2)
    cast_tiles(const Source source, const __grid_constant__ TileOutputs<Source::kOutputs> outputs,
               int col_tiles, bool reverse) {
  wait_for_work_before();
  constexpr int kOutputs = Source::kOutputs;
  constexpr bool kFull = kCase != TileCase::any;
  __shared__ TileShared shared;
  extern __shared__ uint4 stash[];
  const ThreadPlace at;
  const unsigned tile = reverse ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  std::int64_t row0, col0;
  place_tile<Source>(tile, col_tiles, gridDim.x, row0, col0);
  if (behind_groups(source, row0) && tile > 0) return;  // tile 0 may have to store the tensor's amax
  const std::int64_t row = row0 + at.row(), col = col0 + at.col();

  Bf16x8 square[kSquare];
  for_square<kFull>(source, row, col, [&](int i, const Bf16x8(&made)[kOutputs]) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (outputs.of[o].value.data) store<kFull>(outputs.of[o].value, row + i, col, made[o]);
      if (o == 0)
        square[i] = made[0], stay_packed(square[i]);
      else if (outputs.of[o].rowwise.data || outputs.of[o].columnwise.data || outputs.of[o].tensor.raised)
        store_vector(&stash[((o - 1) * kSquare + i) * kTileThreads + threadIdx.x], made[o]);
    }
  });
#pragma unroll 1  // three casts side by side exceed the instruction cache
  for (int o = 0; o < kOutputs; ++o) {
    const TileOutput& out = outputs.of[o];
    if (!out.rowwise.data && !out.columnwise.data && !out.tensor.result && !out.tensor.raised) continue;
    if (o > 0) {
#pragma unroll
      for (int i = 0; i < kSquare; ++i)
        square[i] = load_vector(&stash[((o - 1) * kSquare + i) * kTileThreads + threadIdx.x]);
    }
    cast_tile<kCase>(square, out, row0, out.first_col + col0, shared);
  }
}

}  // namespace precbench::cuda
