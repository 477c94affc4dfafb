// cast_tiles for a Source of as many outputs as inputs, whose inputs come while the tile before is cast.
//
// A block that casts three outputs spends more time on conversions than on loads, and two blocks to a multiprocessor are too
// few to fill each other's pauses. So a block has one tile after the other, and shared memory for the inputs of one. A
// thread makes its part of the outputs in place of its part of the inputs; where an output has been cast, its place is free
// for an input of the next tile:
//
//   inputs    [ 0  1  2 ]
//   make          0  1  2
//   cast                    0      1      2          make  cast  0 ...
//   next tile's inputs           [ 0 .. [ 1 .. [ 2 .. ]
//
// Each thread copies what it will read itself, so copies need no barrier. The place of the output that is being cast, whose
// values are in registers by then, is where its column form is turned.
//
// Beside what tile.cuh says, such a Source has
//   const Matrix& input(i)   kOutputs of them, rows x cols each
//   Raw raw(in)              from a vector of each input
#pragma once

#include <algorithm>

#include "kernels/cuda/copy_async.cuh"
#include "kernels/cuda/quantize/cast_tile.cuh"

namespace precbench::cuda {

template <class Source>
concept ComesAhead = requires(const Source& source, const Bf16x8 (&in)[Source::kOutputs]) {
  source.input(0);
  source.raw(in);
};

/// Vectors of one input or output of a tile, [row of a square][thread].
inline constexpr int kPlaceVectors = kSquare * kTileThreads;
static_assert(kPlaceVectors * 16 >= kTransposedBytes);

template <int kOutputs>
inline constexpr int kAheadBytes = kOutputs* kPlaceVectors * 16;

/// Whole tiles alone.
template <class Source>
__global__ void __launch_bounds__(kTileThreads, 2)
    cast_tiles_ahead(const Source source, const TileOutputs<Source::kOutputs> outputs, int col_tiles,
                     int tiles, bool reverse) {
  constexpr int kOutputs = Source::kOutputs;
  __shared__ TileShared shared;
  extern __shared__ uint4 places[];
  const ThreadPlace at;
  const auto row_of = [&](int tile) {
    return static_cast<std::int64_t>((reverse ? tiles - 1 - tile : tile) / col_tiles) * kTile;
  };
  const auto col_of = [&](int tile) {
    return static_cast<std::int64_t>((reverse ? tiles - 1 - tile : tile) % col_tiles) * kTile;
  };
  const auto fetch = [&](int i, int tile) {
    const Matrix& in = source.input(i);
    const std::uint16_t* from = in.data + (row_of(tile) + at.row()) * in.pitch + col_of(tile) + at.col();
    const std::uint32_t to = shared_address(&places[i * kPlaceVectors + threadIdx.x]);
#pragma unroll
    for (int r = 0; r < kSquare; ++r) copy_async_16(to + r * kTileThreads * 16, from + r * in.pitch);
    commit_copies();
  };

  int tile = static_cast<int>(blockIdx.x);
  for (int i = 0; i < kOutputs && tile < tiles; ++i) fetch(i, tile);
  for (; tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const std::int64_t row0 = row_of(tile), col0 = col_of(tile);
    const int next = tile + static_cast<int>(gridDim.x);
    wait_for_copies();
    const typename Source::Column column = source.template column<true>(col0 + at.col());
#pragma unroll 2
    for (int r = 0; r < kSquare; ++r) {
      uint4* mine = &places[r * kTileThreads + threadIdx.x];
      Bf16x8 in[kOutputs], made[kOutputs];
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) in[i] = load_vector(mine + i * kPlaceVectors);
      source.make(made, source.raw(in), column, row0 + at.row() + r, col0 + at.col());
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        if (outputs.of[o].value.data)
          store<true>(outputs.of[o].value, row0 + at.row() + r, col0 + at.col(), made[o]);
        store_vector(mine + o * kPlaceVectors, made[o]);
      }
    }
#pragma unroll 1
    for (int o = 0; o < kOutputs; ++o) {
      const TileOutput& out = outputs.of[o];
      uint4* place = &places[o * kPlaceVectors];
      if (out.wants_tile()) {
        Bf16x8 square[kSquare];
#pragma unroll
        for (int r = 0; r < kSquare; ++r) square[r] = load_vector(&place[r * kTileThreads + threadIdx.x]);
        cast_tile<true>(square, out, row0, out.first_col + col0, shared,
                        reinterpret_cast<std::uint8_t*>(place));
        __syncthreads();  // the codes in this place have been read, and the scales
      }
      if (next < tiles) fetch(o, next);
    }
  }
}

}  // namespace precbench::cuda
