// The engine that turns what an op computes into its QuantizedTensor: the BF16 value, amaxes, and row and column
// forms.
//
// An op that works on elements is a Source: it loads raw inputs at (row, col .. col + 8) and makes 8 BF16 of
// each of its outputs from them. Two kernels run over any Source in tiles of 128 x 128, the largest scope of
// a block scale:
//   amax_tiles  reads only, and makes the amaxes of scopes larger than a tile (tensor, row, column)
//   cast_tiles  writes value, row form and col form in one pass over the input, with their scales
// so blocks cost one pass and whole-tensor or whole-row scales two. Nothing in between goes through memory;
// the second pass takes the tiles in reverse order, because those read last are still in L2.
//
// A block of 256 threads has one tile: warp w has rows 16w..16w+15, each half of the warp 8 of them, each
// thread 8 columns, so a half-warp reads 256 contiguous bytes and a thread holds an 8 x 8 square. Row forms
// leave directly, 128 bytes per half-warp. Column forms go through shared memory: a thread's column of 8
// codes is one 8-byte store, and the 16-byte chunks of a shared row are permuted so that neither side has
// bank conflicts.
//
// A Source has: kOutputs; kBatch, the rows whose loads are in flight together; Raw and Column types; rows,
// cols and vectors() (16-byte loads everywhere);
//   Column column<kFull>(col)            what depends on the column alone
//   Raw fetch<kFull>(row, col)           the loads
//   void make(out[kOutputs], raw, column, row, col)
#pragma once

#include "kernels/cuda/gemm_operands.cuh"

namespace precbench::cuda {

inline constexpr int kTile = 128;
inline constexpr int kTileThreads = 256;
inline constexpr int kTileWarps = kTileThreads / kWarp;
inline constexpr int kSquare = 8;  ///< rows and columns of one thread

/// The amax of a tensor on its way: every block of an amax pass leaves its own maximum, and every block of
/// the cast pass takes the maximum of those, so that nothing has to be zeroed before.
struct TensorAmax {
  std::uint32_t* parts = nullptr;   ///< bits of FP32; null: no scale or amax of the tensor is wanted
  int count = 0;                    ///< of parts that the cast pass reads
  int first = 0;                    ///< part of the amax pass's block 0
  std::uint32_t* result = nullptr;  ///< where the cast pass stores the maximum; null: it was known before

  bool on_its_way() const { return result && count == 0; }
};

/// Where one output of a Source goes.
struct TileOutput {
  Matrix value;  ///< data null: not written
  FormArgs rowwise, columnwise;
  std::int64_t first_col = 0;  ///< of this output in the forms' matrix, a multiple of 128
  TensorAmax tensor;
  // Bits of FP32 amaxes by row and column of the forms, which the amax pass raises from zero; null: not
  // wanted.
  std::int32_t* row_amax = nullptr;
  std::int32_t* col_amax = nullptr;

  bool wants_amax() const { return tensor.on_its_way() || row_amax || col_amax; }
  bool wants_cast() const { return value.data || rowwise.data || columnwise.data; }
};

template <int kOutputs>
struct TileOutputs {
  TileOutput of[kOutputs];
};

struct TileShared {
  alignas(16) std::uint8_t transposed[kTile * kTile];
  alignas(16) std::uint16_t row_max[4][kTile];           // of 32 columns each
  alignas(16) std::uint16_t col_max[kTileWarps][kTile];  // of 16 rows each
  std::uint32_t warp_max[kTileWarps];
  std::uint32_t tensor_max[kTileWarps];  // of the amax pass's parts
  // [block][row]: multiplying; block 0 alone unless blocks are 32 long
  alignas(16) float row_scale[4][kTile];
  alignas(16) float col_scale[4][kTile];
};

struct ThreadPlace {
  int warp = threadIdx.x / kWarp;
  int half = threadIdx.x % kWarp / 16;
  int lane = threadIdx.x % 16;
  __device__ int row() const { return warp * 16 + half * kSquare; }
  __device__ int col() const { return lane * kSquare; }
};

/// Maxima of the square's rows, two rows to a word.
__device__ inline void row_maxima(std::uint32_t (&out)[4], const Bf16x8 (&square)[kSquare]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const std::uint32_t a = max_of_pairs(square[2 * p]), b = max_of_pairs(square[2 * p + 1]);
    out[p] = max_of_pairs(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
  }
}

/// Maxima of the square's columns, raised over the 16 rows of the warp.
__device__ inline void warp_col_maxima(Bf16x8& out, const Bf16x8 (&square)[kSquare]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    std::uint32_t m = square[0].pair[p] & kNoSigns;
#pragma unroll
    for (int i = 1; i < kSquare; ++i) m = max_of_pairs(m, square[i].pair[p] & kNoSigns);
    out.pair[p] = max_of_pairs(m, __shfl_xor_sync(kAllLanes, m, 16));
  }
}

__device__ inline std::uint32_t warp_max(const Bf16x8& v) {
  return __reduce_max_sync(kAllLanes, max_half(max_of_pairs(max_of_pairs(v.pair[0], v.pair[1]),
                                                            max_of_pairs(v.pair[2], v.pair[3]))));
}

/// Makes the scales of one form in this tile. `maxima`: [parts][kTile] partial amaxes, 128 / parts elements
/// of the contraction each; row0 and k0: the tile's place in the form. Half of the block's threads work, from
/// thread `turn` on, each for one row of the form.
__device__ inline void tile_scales(float (&scale)[4][kTile], const FormArgs& form,
                                   const std::uint16_t (*maxima)[kTile], int parts,
                                   const std::uint32_t (&warp_maxima)[kTileWarps], std::uint32_t tensor_amax,
                                   std::int64_t row0, std::int64_t k0, int turn) {
  const int v = static_cast<int>((threadIdx.x + turn) % kTileThreads);
  if (v >= kTile) return;
  const std::int64_t row = row0 + v;
  if (form.granularity == Granularity::block_1x32) {
    // The tile's scales lie together, the four of a row in one word; 0 where the form ends (scale_layout.h).
    const std::int64_t kb = k0 / 32, kbs = row < form.rows ? scale_blocks(form.granularity, form.k) : 0;
    const int n = parts / 4;
    std::uint32_t word = 0;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      std::uint32_t amax = maxima[block * n][v];
      for (int i = 1; i < n; ++i) amax = max(amax, static_cast<std::uint32_t>(maxima[block * n + i][v]));
      const std::uint8_t byte = ue8m0_from_amax(__uint_as_float(amax << 16), form.dtype, form.rounding);
      if (kb + block < kbs) word |= static_cast<std::uint32_t>(byte) << (8 * block);
      scale[block][v] = ue8m0_multiplier(byte);
    }
    auto* bytes = static_cast<std::uint8_t*>(form.scale);
    *reinterpret_cast<std::uint32_t*>(
        bytes + scale_index(Granularity::block_1x32, form.rows, form.k, row, kb)) = word;
    return;
  }
  const std::int64_t kb = k0 / 128;
  std::uint32_t amax = 0;
  bool store = row < form.rows;
  switch (form.granularity) {
    case Granularity::tensor:
      amax = tensor_amax;
      store = row == 0 && k0 == 0;
      break;
    case Granularity::row:
      if (row < form.rows) amax = __float_as_uint(form.amax[row]);
      store = store && k0 == 0;
      break;
    case Granularity::block_128x128:
#pragma unroll
      for (int w = 0; w < kTileWarps; ++w) amax = max(amax, warp_maxima[w] << 16);
      store = v == 0;
      break;
    default:
      for (int part = 0; part < parts; ++part)
        amax = max(amax, static_cast<std::uint32_t>(maxima[part][v]) << 16);
  }
  scale[0][v] = make_scale(form, amax, scale_index(form.granularity, form.rows, form.k, row, kb), store);
}

/// Writes the forms of one tile from the threads' squares. Every thread of the block calls it.
template <bool kFull>
__device__ inline void cast_tile(Bf16x8 (&square)[kSquare], const TileOutput& out, std::int64_t row0,
                                 std::int64_t col0, TileShared& shared) {
  const ThreadPlace at;
  const FormArgs &row_form = out.rowwise, &col_form = out.columnwise;
  if (out.tensor.parts) {
    std::uint32_t amax = 0;
    for (int i = threadIdx.x; i < out.tensor.count; i += kTileThreads) amax = max(amax, out.tensor.parts[i]);
    amax = __reduce_max_sync(kAllLanes, amax);
    if (threadIdx.x % kWarp == 0) shared.tensor_max[at.warp] = amax;
  }
  if ((row_form.data && row_form.in_blocks()) || (col_form.data && col_form.in_blocks())) {
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
  __syncthreads();
  std::uint32_t tensor_amax = 0;
  if (out.tensor.parts) {
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) tensor_amax = max(tensor_amax, shared.tensor_max[w]);
    if (out.tensor.result && row0 == 0 && col0 == 0 && threadIdx.x == 0) *out.tensor.result = tensor_amax;
  }
  if (row_form.data)
    tile_scales(shared.row_scale, row_form, shared.row_max, 4, shared.warp_max, tensor_amax, row0, col0, 0);
  if (col_form.data)
    tile_scales(shared.col_scale, col_form, shared.col_max, kTileWarps, shared.warp_max, tensor_amax, col0,
                row0, kTile);
  __syncthreads();

  if (row_form.data) {
    const int block = row_form.granularity == Granularity::block_1x32 ? at.lane / 4 : 0;
    const std::int64_t col = col0 + at.col();
    with_fp8(row_form.dtype, [&](auto dtype) {
#pragma unroll
      for (int i = 0; i < kSquare; ++i) {
        const float s = shared.row_scale[block][at.row() + i];
        float x[8];
        unpack(x, square[i]);
        const uint2 codes = make_uint2(fp8x4(x[0] * s, x[1] * s, x[2] * s, x[3] * s, dtype),
                                       fp8x4(x[4] * s, x[5] * s, x[6] * s, x[7] * s, dtype));
        const std::int64_t row = row0 + at.row() + i;
        std::uint8_t* p = row_form.data + row * row_form.k + col;
        if (kFull || (row < row_form.rows && col + 8 <= row_form.k && row_form.k % 8 == 0)) {
          *reinterpret_cast<uint2*>(p) = codes;
        } else if (row < row_form.rows) {
          for (int j = 0; j < 8; ++j)
            if (col + j < row_form.k)
              p[j] = static_cast<std::uint8_t>((j < 4 ? codes.x : codes.y) >> (8 * (j % 4)));
        }
      }
    });
  }

#pragma unroll
  for (int i = 0; i < kSquare; ++i) stay_packed(square[i]);
  if (col_form.data) {
    const int block = col_form.granularity == Granularity::block_1x32 ? at.warp / 2 : 0;
    float s[8];
    load_vector(s, &shared.col_scale[block][at.col()]);
    with_fp8(col_form.dtype, [&](auto dtype) {
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
      std::uint8_t* p = col_form.data + col * col_form.k + row;
      if (kFull || (col < col_form.rows && row + 16 <= col_form.k && col_form.k % 16 == 0)) {
        store_vector(p, codes);
      } else if (col < col_form.rows) {
        for (int j = 0; j < 16; ++j)
          if (row + j < col_form.k) p[j] = static_cast<std::uint8_t>(codes.pair[j / 4] >> (8 * (j % 4)));
      }
    }
  }
}

/// use(i, outputs of the square's row i) for all rows, loads in batches.
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

/// A persistent grid: block b has the tiles b, b + gridDim, ...
template <class Source, bool kFull>
__global__ void __launch_bounds__(kTileThreads, Source::kOutputs == 1 ? 4 : 2)
    amax_tiles(const Source source, const TileOutputs<Source::kOutputs> outputs, int col_tiles, int tiles) {
  constexpr int kOutputs = Source::kOutputs;
  __shared__ alignas(16) std::uint16_t row_max[kOutputs][kTile];
  __shared__ alignas(16) std::uint16_t col_max[kOutputs][kTileWarps][kTile];
  __shared__ std::uint32_t tensor_max[kOutputs][kWarp];
  const ThreadPlace at;
  std::uint32_t largest[kOutputs] = {};  // over all tiles, of each half
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t row0 = static_cast<std::int64_t>(tile / col_tiles) * kTile;
    const std::int64_t col0 = static_cast<std::int64_t>(tile % col_tiles) * kTile;
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
        atomicMax(out.col_amax + out.first_col + col0 + t, static_cast<std::int32_t>(all << 16));
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

/// Squares of the second and later outputs wait in dynamic shared memory, 16 bytes per thread and row.
template <int kOutputs>
inline constexpr int kStashBytes = (kOutputs - 1) * kSquare* kTileThreads * 16;

template <class Source, bool kFull>
__global__ void __launch_bounds__(kTileThreads, Source::kOutputs == 1 ? 3 : 2)
    cast_tiles(const Source source, const TileOutputs<Source::kOutputs> outputs, int col_tiles,
               bool reverse) {
  constexpr int kOutputs = Source::kOutputs;
  __shared__ TileShared shared;
  extern __shared__ uint4 stash[];
  const ThreadPlace at;
  const unsigned tile = reverse ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const std::int64_t row0 = static_cast<std::int64_t>(tile / col_tiles) * kTile;
  const std::int64_t col0 = static_cast<std::int64_t>(tile % col_tiles) * kTile;
  const std::int64_t row = row0 + at.row(), col = col0 + at.col();

  Bf16x8 square[kSquare];
  for_square<kFull>(source, row, col, [&](int i, const Bf16x8(&made)[kOutputs]) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (outputs.of[o].value.data) store<kFull>(outputs.of[o].value, row + i, col, made[o]);
      if (o == 0)
        square[i] = made[0], stay_packed(square[i]);
      else if (outputs.of[o].rowwise.data || outputs.of[o].columnwise.data)
        store_vector(&stash[((o - 1) * kSquare + i) * kTileThreads + threadIdx.x], made[o]);
    }
  });
#pragma unroll 1  // three casts side by side are more code than the instruction cache holds
  for (int o = 0; o < kOutputs; ++o) {
    const TileOutput& out = outputs.of[o];
    if (!out.rowwise.data && !out.columnwise.data && !out.tensor.result) continue;
    if (o > 0) {
#pragma unroll
      for (int i = 0; i < kSquare; ++i)
        square[i] = load_vector(&stash[((o - 1) * kSquare + i) * kTileThreads + threadIdx.x]);
    }
    cast_tile<kFull>(square, out, row0, out.first_col + col0, shared);
  }
}

}  // namespace precbench::cuda
