// The cast of one tile: from the squares that a block's threads hold to scales, rowwise and columnwise
// copies. Warps share their maxima, half of the threads compute the scales of one copy, then all multiply and
// convert.
#pragma once

#include <span>
#include <type_traits>

#include "kernels/cuda/quantize/tile.cuh"

namespace precbench::cuda {

/// Computes the scales of one copy in this tile. `maxima`: [parts][kTile] partial amaxes of 128 / parts
/// elements of the contraction each; row0 and k0: the tile's position in the copy. Called by one
/// half of the block's threads, each for one row of the copy.
__device__ inline void tile_scales(float (&scale)[4][kTile], const CopyArgs& copy,
                                   const std::uint16_t (*maxima)[kTile], int parts,
                                   const std::uint32_t (&warp_maxima)[kTileWarps], std::uint32_t tensor_amax,
                                   std::int64_t row0, std::int64_t k0) {
  const int v = threadIdx.x % kTile;
  const std::int64_t row = row0 + v;
  if (copy.in_blocks_of_32()) {
    // The tile's scales are adjacent, the four of a row in one word, which saves three 64-bit address
    // computations; 0 beyond the end of the copy (scale_layout.h).
    const std::int64_t kb = k0 / 32, kbs = row < copy.rows ? scale_blocks(copy.granularity, copy.k) : 0;
    const int n = parts / 4;
    std::uint32_t word = 0;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      std::uint32_t amax = maxima[block * n][v];
      for (int i = 1; i < n; ++i) amax = max(amax, static_cast<std::uint32_t>(maxima[block * n + i][v]));
      // A warp has 32 rows aligned with a block; those beyond the end are 0.
      if (copy.granularity == Granularity::block_32x32) amax = __reduce_max_sync(kAllLanes, amax);
      const std::uint8_t byte =
          ue8m0_from_amax(__uint_as_float(amax << 16), copy.dtype, copy.rounding, copy.dropped_bits);
      if (kb + block < kbs) word |= static_cast<std::uint32_t>(byte) << (8 * block);
      scale[block][v] = ue8m0_multiplier(byte);
    }
    auto* bytes = static_cast<std::uint8_t*>(copy.scale);
    *reinterpret_cast<std::uint32_t*>(
        bytes + scale_index(Granularity::block_1x32, copy.rows, copy.k, row, kb)) = word;
    return;
  }
  const std::int64_t kb = k0 / 128;
  std::uint32_t amax = 0;
  bool store = row < copy.rows;
  std::int64_t index = scale_index(copy.granularity, copy.rows, copy.k, row, kb);
  switch (copy.granularity) {
    case Granularity::tensor:
      amax = tensor_amax;
      store = row == 0 && k0 == 0;
      break;
    case Granularity::row: {
      const int group = copy.group_offsets ? group_at(copy, k0) : 0;
      if (copy.group_offsets) store = store && group < copy.groups;
      index += group * copy.rows;
      if (store) amax = __float_as_uint(copy.amax[index]);
      store = store && k0 == (copy.group_offsets ? copy.group_offsets[group] : 0);
      break;
    }
    case Granularity::block_128x128:
#pragma unroll
      for (int w = 0; w < kTileWarps; ++w) amax = max(amax, warp_maxima[w] << 16);
      store = v == 0;
      break;
    default:
      for (int part = 0; part < parts; ++part)
        amax = max(amax, static_cast<std::uint32_t>(maxima[part][v]) << 16);
  }
  scale[0][v] = make_scale(copy, amax, index, store);
}

/// First step of a cast: every warp writes the maxima that the scales need to shared memory.
__device__ __forceinline__ void store_maxima(TileShared& shared, const Bf16x8 (&square)[kSquare],
                                             const TileOutput& out, const ThreadPlace& at) {
  if (out.tensor.parts) {
    std::uint32_t amax = 0;
    for (int i = threadIdx.x; i < out.tensor.count; i += kTileThreads) amax = max(amax, out.tensor.parts[i]);
    amax = __reduce_max_sync(kAllLanes, amax);
    if (threadIdx.x % kWarp == 0) shared.tensor_max[at.warp] = amax;
  }
  const CopyArgs &row_copy = out.rowwise, &col_copy = out.columnwise;
  if ((row_copy.data && row_copy.in_blocks()) || (col_copy.data && col_copy.in_blocks())) {
    std::uint32_t rows[4];
    row_maxima(rows, square);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      rows[p] = max_of_pairs(rows[p], __shfl_xor_sync(kAllLanes, rows[p], 1));
      rows[p] = max_of_pairs(rows[p], __shfl_xor_sync(kAllLanes, rows[p], 2));
    }
    if (at.lane % 4 == 0)
      store_vector(&shared.row_max[at.lane / 4][at.row()], {{rows[0], rows[1], rows[2], rows[3]}});
    Bf16x8 cols;
    warp_col_maxima(cols, square);
    if (at.half == 0) store_vector(&shared.col_max[at.warp][at.col()], cols);
    const std::uint32_t all = warp_max(cols);
    if (threadIdx.x % kWarp == 0) shared.warp_max[at.warp] = all;
  }
}

/// Raises an amax that does not determine scales in this pass. After the first tiles hardly any value exceeds
/// it, and then it costs only a read.
__device__ __forceinline__ void raise_amax(std::uint32_t* amax, const Bf16x8 (&square)[kSquare]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kSquare; ++i) largest = max_of_pairs(largest, max_of_pairs(square[i]));
  largest = __reduce_max_sync(kAllLanes, max_half(largest)) << 16;
  if (threadIdx.x % kWarp == 0 && largest > *static_cast<volatile std::uint32_t*>(amax))
    atomicMax(amax, largest);
}

/// Second step: computes the scales of both copies from the maxima of all warps. kParameter: `out` is a
/// kernel parameter. Otherwise a reference to one of its copies, selected by thread, would put all of it into
/// local memory.
template <bool kParameter>
__device__ __forceinline__ void store_scales(TileShared& shared, const TileOutput& out, std::int64_t row0,
                                             std::int64_t col0) {
  std::uint32_t tensor_amax = 0;
  if (out.tensor.parts) {
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) tensor_amax = max(tensor_amax, shared.tensor_max[w]);
    if (out.tensor.result && row0 == 0 && col0 == 0 && threadIdx.x == 0) *out.tensor.result = tensor_amax;
  }
  // Half of the threads each, with a single copy of the code.
  const bool cols = threadIdx.x >= kTile;
  const std::conditional_t<kParameter, const CopyArgs&, const CopyArgs> copy =
      cols ? out.columnwise : out.rowwise;
  if (copy.data)
    tile_scales(cols ? shared.col_scale : shared.row_scale, copy, cols ? shared.col_max : shared.row_max,
                cols ? kTileWarps : 4, shared.warp_max, tensor_amax, cols ? col0 : row0, cols ? row0 : col0);
}

/// Writes the rowwise copy: eight codes of each of the square's rows, row i times factor(i). kFull: see
/// TileCase::full.
template <bool kFull, class Factor>
__device__ __forceinline__ void cast_rows(const Bf16x8 (&square)[kSquare], const CopyArgs& copy,
                                          std::int64_t row0, std::int64_t col0, const ThreadPlace& at,
                                          Factor&& factor) {
  const std::int64_t col = col0 + at.col();
  with_fp8(copy.dtype, kFull ? 0 : copy.dropped_bits, [&](auto dtype) {
#pragma unroll
    for (int i = 0; i < kSquare; ++i) {
      const uint2 codes = fp8x8(square[i], factor(i), dtype);
      const std::int64_t row = row0 + at.row() + i;
      std::uint8_t* p = copy.data + row * copy.k + col;
      if (kFull || (row < copy.rows && col + 8 <= copy.k && copy.k % 8 == 0)) {
        *reinterpret_cast<uint2*>(p) = codes;
      } else if (row < copy.rows) {
        for (int j = 0; j < 8; ++j)
          if (col + j < copy.k)
            p[j] = static_cast<std::uint8_t>((j < 4 ? codes.x : codes.y) >> (8 * (j % 4)));
      }
    }
  });
}

/// Writes the columnwise copy through shared memory, column j times s[j].
template <bool kFull>
__device__ __forceinline__ void cast_cols(const Bf16x8 (&square)[kSquare], const CopyArgs& copy,
                                          std::int64_t row0, std::int64_t col0, TileShared& shared,
                                          const ThreadPlace& at, const float (&s)[8]) {
  with_fp8(copy.dtype, kFull ? 0 : copy.dropped_bits, [&](auto dtype) {
#pragma unroll
    for (int j = 0; j < kSquare; ++j) {
      float x[kSquare];
#pragma unroll
      for (int i = 0; i < kSquare; ++i)
        x[i] = (j % 2 ? high(square[i].pair[j / 2]) : low(square[i].pair[j / 2])) * s[j];
      const int chunk = at.warp ^ (at.lane % 8);
      std::uint8_t* p = shared.transposed + (at.col() + j) * kTile + chunk * 16 + at.half * 8;
      *reinterpret_cast<uint2*>(p) =
          make_uint2(fp8x4(x[0], x[1], x[2], x[3], dtype), fp8x4(x[4], x[5], x[6], x[7], dtype));
    }
  });
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kTile * kTile / 16 / kTileThreads; ++n) {
    const int e = threadIdx.x + n * kTileThreads;
    const int c = e / 8, chunk = e % 8;
    const Bf16x8 codes = load_vector(shared.transposed + c * kTile + (chunk ^ (c / kSquare % 8)) * 16);
    const std::int64_t col = col0 + c, row = row0 + chunk * 16;
    std::uint8_t* p = copy.data + col * copy.k + row;
    if (kFull || (col < copy.rows && row + 16 <= copy.k && copy.k % 16 == 0)) {
      store_vector(p, codes);
    } else if (col < copy.rows) {
      for (int j = 0; j < 16; ++j)
        if (row + j < copy.k) p[j] = static_cast<std::uint8_t>(codes.pair[j / 4] >> (8 * (j % 4)));
    }
  }
}

/// Writes the copies of a tile with an amax known in advance: every thread computes the scales itself, so no
/// warp waits for another.
__device__ __forceinline__ void cast_by_known_amax(Bf16x8 (&square)[kSquare], const TileOutput& out,
                                                   std::int64_t row0, std::int64_t col0, TileShared& shared,
                                                   const ThreadPlace& at) {
  if (!out.tensor.parts) return;  // neither copies nor the amax are requested
  const std::uint32_t amax = *out.tensor.parts;
  const bool first = row0 == 0 && col0 == 0 && threadIdx.x == 0;
  if (out.tensor.result && first) *out.tensor.result = amax;
  if (out.rowwise.data) {
    const float factor = make_scale(out.rowwise, amax, 0, first);
    cast_rows<true>(square, out.rowwise, row0, col0, at, [factor](int) { return factor; });
  }
#pragma unroll
  for (int i = 0; i < kSquare; ++i) stay_packed(square[i]);
  if (!out.columnwise.data) return;
  const float factor = make_scale(out.columnwise, amax, 0, first);
  const float factors[8] = {factor, factor, factor, factor, factor, factor, factor, factor};
  __syncthreads();  // the previous output has been read
  cast_cols<true>(square, out.columnwise, row0, col0, shared, at, factors);
}

/// Writes the copies of one tile from the threads' squares. Every thread of the block must call it.
/// kParameter: see store_scales.
template <TileCase kCase, bool kParameter = true>
__device__ inline void cast_tile(Bf16x8 (&square)[kSquare], const TileOutput& out, std::int64_t row0,
                                 std::int64_t col0, TileShared& shared) {
  const ThreadPlace at;
  if (out.tensor.raised) raise_amax(out.tensor.raised, square);
  if constexpr (kCase == TileCase::known) {
    cast_by_known_amax(square, out, row0, col0, shared, at);
  } else {
    constexpr bool kFull = kCase == TileCase::full;
    store_maxima(shared, square, out, at);
    __syncthreads();
    store_scales<kParameter>(shared, out, row0, col0);
    __syncthreads();
    if (out.rowwise.data) {
      const int block = out.rowwise.in_blocks_of_32() ? at.lane / 4 : 0;
      cast_rows<kFull>(square, out.rowwise, row0, col0, at,
                       [&](int i) { return shared.row_scale[block][at.row() + i]; });
    }
#pragma unroll
    for (int i = 0; i < kSquare; ++i) stay_packed(square[i]);
    if (out.columnwise.data) {
      float factors[8];
      load_vector(factors, &shared.col_scale[out.columnwise.in_blocks_of_32() ? at.warp / 2 : 0][at.col()]);
      cast_cols<kFull>(square, out.columnwise, row0, col0, shared, at, factors);
    }
  }
}

/// Returns the case of a cast to these outputs. `whole_tiles`: of vectors, for everything that is read or
/// written.
inline TileCase tile_case(std::span<const TileOutput> outputs, bool whole_tiles) {
  bool known = true;
  for (const TileOutput& out : outputs) {
    for (const CopyArgs* copy : {&out.rowwise, &out.columnwise}) {
      if (!copy->data) continue;
      if (!whole_tiles || copy->dropped_bits > 0) return TileCase::any;
      known = known && copy->granularity == Granularity::tensor && out.tensor.count == 1;
    }
    known = known && (!out.tensor.result || out.tensor.count == 1);
  }
  if (!whole_tiles) return TileCase::any;
  return known ? TileCase::known : TileCase::full;
}

/// Calls body(std::integral_constant<TileCase, it>()).
template <class Body>
void with_tile_case(TileCase it, Body&& body) {
  switch (it) {
    case TileCase::any:
      return body(std::integral_constant<TileCase, TileCase::any>());
    case TileCase::full:
      return body(std::integral_constant<TileCase, TileCase::full>());
    case TileCase::known:
      return body(std::integral_constant<TileCase, TileCase::known>());
  }
}

}  // namespace precbench::cuda
