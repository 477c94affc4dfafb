// The engine that turns an op's result into its QuantizedTensor: the BF16 value, amaxes, and rowwise and
// columnwise copies.
//
// An elementwise op is a Source: it loads raw inputs at (row, col .. col + 8) and computes 8 BF16 of each of
// its outputs. Two kernels run over any Source in tiles of 128 x 128, the largest block scope:
//   amax_tiles  only reads, and computes the amaxes of scopes larger than a tile (tensor, row, column)
//   cast_tiles  writes value, rowwise and columnwise copy in one pass over the input, with their scales
// Block scales therefore cost one pass, and scales per tensor or row two. No intermediate goes through
// memory; the second pass takes the tiles in reverse order, because those read last are still in L2.
//
//   inputs in global memory
//        |  16-byte loads, kBatch rows in flight
//        v
//   registers: Source::make, an 8 x 8 square of BF16 for each thread
//        |                 |
//        |                 v
//        |            maxima of rows, columns, blocks -> shared memory          store_maxima
//        |                 |  barrier
//        |                 v
//        |            half of the threads: scales of the rowwise copy           store_scales
//        |            the other half: scales of the columnwise copy
//        |                 |  barrier
//        v                 v
//   x scale -> FP8 -> rowwise copy, from registers to global memory             cast_rows
//   x scale -> FP8 -> shared memory, transposed, barrier -> columnwise copy     cast_cols
//
// With scales known in advance, every thread computes them itself, and everything up to the second barrier is
// skipped (TileCase::known).
//
// A block of 256 threads has one tile. Warp w has rows 16w..16w+15, each half of the warp 8 of them, each
// thread 8 columns: a half-warp reads 256 contiguous bytes and a thread holds an 8 x 8 square. Rowwise copies
// are written directly, 128 bytes per half-warp. Columnwise copies go through shared memory: a thread's
// column of 8 codes is one 8-byte store, and the 16-byte chunks of a shared row are permuted so that neither
// side has bank conflicts.
//
// 64 to 98 KB of loads are in flight per multiprocessor; an H200's latency and bandwidth require 22. Amax is
// an unsigned maximum of two BF16 at a time. Scales are computed once per tile and scope: in every thread
// they would cost 5 instructions per element, half of a whole cast of both copies.
//
// A Source has: kOutputs; kBatch, the rows whose loads are in flight together; Raw and Column types; rows,
// cols and vectors() (16-byte loads everywhere);
//   Column column<kFull>(col)            values that depend only on the column
//   Raw fetch<kFull>(row, col)           the loads
//   void make(out[kOutputs], raw, column, row, col)
#pragma once

#include "kernels/cuda/quantize/gemm_operands.cuh"

namespace precbench::cuda {

inline constexpr int kTile = 128;
inline constexpr int kTileThreads = 256;
inline constexpr int kTileWarps = kTileThreads / kWarp;
inline constexpr int kSquare = 8;  ///< rows and columns of one thread

/// Properties of a cast known before the launch. Each case has its own kernel: one kernel for all exceeds the
/// instruction cache.
enum class TileCase {
  any,
  full,   ///< whole tiles, read and written as vectors, and no format with dropped bits
  known,  ///< full, and every copy has a per-tensor scale with an amax known before
};

/// A tensor's amax during the passes. Every block of an amax pass writes its own maximum, and every block of
/// the cast pass takes the maximum of those, so that nothing has to be zeroed before. A memset would be a
/// graph node of its own, about 1 us in a step of a small model where an op takes 5.
struct TensorAmax {
  std::uint32_t* parts = nullptr;   ///< FP32 bits; null: no per-tensor scale or amax is needed
  int count = 0;                    ///< parts that the cast pass reads
  int first = 0;                    ///< part of the amax pass's block 0
  std::uint32_t* result = nullptr;  ///< destination of the maximum in the cast pass; null: known before

  /// Raised by the cast pass to the maximum of the values, if its scales come from another amax; null: none.
  std::uint32_t* raised = nullptr;

  bool on_its_way() const { return result && count == 0; }
};

/// Destinations of one output of a Source.
struct TileOutput {
  Matrix value;  ///< data null: not written
  CopyArgs rowwise, columnwise;
  std::int64_t first_col = 0;  ///< of this output in the copies' matrix, a multiple of 128
  TensorAmax tensor;
  // FP32 bits of amaxes by row and column of the copies, which the amax pass raises from zero; null: not
  // needed. With groups, those of columns are per group.
  std::int32_t* row_amax = nullptr;
  std::int32_t* col_amax = nullptr;

  bool wants_amax() const { return tensor.on_its_way() || row_amax || col_amax; }
  bool wants_cast() const { return value.data || rowwise.data || columnwise.data || tensor.raised; }
};

/// Base of Sources without values that depend on the column.
struct NoColumns {
  struct Column {};
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
};

/// Base of Sources whose single output is what they load.
struct PlainSource : NoColumns {
  static constexpr int kOutputs = 1, kBatch = 8;
  using Raw = Bf16x8;
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    out[0] = raw;
  }
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
  // [block][row]: multiplying factors; only block 0 unless blocks are 32 long.
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

/// Maxima of the square's rows, two rows per word.
__device__ inline void row_maxima(std::uint32_t (&out)[4], const Bf16x8 (&square)[kSquare]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const std::uint32_t a = max_of_pairs(square[2 * p]), b = max_of_pairs(square[2 * p + 1]);
    out[p] = max_of_pairs(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
  }
}

/// Maxima of the square's columns, over the 16 rows of the warp.
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

}  // namespace precbench::cuda
