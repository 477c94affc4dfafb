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
//   inputs in global memory
//        |  16-byte loads, kBatch rows on their way
//        v
//   registers: Source::make, an 8 x 8 square of BF16 for each thread
//        |                 |
//        |                 v
//        |            maxima of rows, columns, blocks -> shared memory          leave_maxima
//        |                 |  barrier
//        |                 v
//        |            half of the threads: scales of the row form               leave_scales
//        |            the other half: scales of the column form
//        |                 |  barrier
//        v                 v
//   x scale -> FP8 -> row form, from registers to global memory                 cast_rows
//   x scale -> FP8 -> shared memory, turned, barrier -> column form             cast_cols
//
// Of scales that are known before, every thread makes them itself, and all up to the second barrier goes (TileCase::known).
//
// A block of 256 threads has one tile: warp w has rows 16w..16w+15, each half of the warp 8 of them, each
// thread 8 columns, so a half-warp reads 256 contiguous bytes and a thread holds an 8 x 8 square. Row forms
// leave directly, 128 bytes per half-warp. Column forms go through shared memory: a thread's column of 8
// codes is one 8-byte store, and the 16-byte chunks of a shared row are permuted so that neither side has
// bank conflicts.
//
// Loads of 64 to 98 KB are in flight per multiprocessor, where an H200's latency and bandwidth ask for 22. Amax is an
// unsigned maximum of two BF16 at a time. Scales are made once per tile and scope: made by every thread they would cost 5
// instructions per element, half of a whole cast of both forms.
//
// A Source has: kOutputs; kBatch, the rows whose loads are in flight together; Raw and Column types; rows,
// cols and vectors() (16-byte loads everywhere);
//   Column column<kFull>(col)            what depends on the column alone
//   Raw fetch<kFull>(row, col)           the loads
//   void make(out[kOutputs], raw, column, row, col)
#pragma once

#include "kernels/cuda/quantize/gemm_operands.cuh"

namespace precbench::cuda {

inline constexpr int kTile = 128;
inline constexpr int kTileThreads = 256;
inline constexpr int kTileWarps = kTileThreads / kWarp;
inline constexpr int kSquare = 8;  ///< rows and columns of one thread

/// What is known of a cast before it is launched. Each has a kernel of its own: one with every way in it is more code than
/// the instruction cache holds.
enum class TileCase {
  any,
  full,   ///< whole tiles, read and written as vectors, and no form drops bits
  known,  ///< that, and every form has the scale of a tensor whose amax was known before
};

/// The amax of a tensor on its way: every block of an amax pass leaves its own maximum, and every block of
/// the cast pass takes the maximum of those, so that nothing has to be zeroed before: a memset would be a graph
/// node of its own, about 1 us in a step of a small model where an op takes 5.
struct TensorAmax {
  std::uint32_t* parts = nullptr;   ///< bits of FP32; null: no scale or amax of the tensor is wanted
  int count = 0;                    ///< of parts that the cast pass reads
  int first = 0;                    ///< part of the amax pass's block 0
  std::uint32_t* result = nullptr;  ///< where the cast pass stores the maximum; null: it was known before

  /// What the cast pass raises to the maximum of the values, where it has its scales from another amax; null: nothing.
  std::uint32_t* raised = nullptr;

  bool on_its_way() const { return result && count == 0; }
};

/// Where one output of a Source goes.
struct TileOutput {
  Matrix value;  ///< data null: not written
  FormArgs rowwise, columnwise;
  std::int64_t first_col = 0;  ///< of this output in the forms' matrix, a multiple of 128
  TensorAmax tensor;
  // Bits of FP32 amaxes by row and column of the forms, which the amax pass raises from zero; null: not
  // wanted. Those of columns are by group, too, where there are groups.
  std::int32_t* row_amax = nullptr;
  std::int32_t* col_amax = nullptr;

  bool wants_amax() const { return tensor.on_its_way() || row_amax || col_amax; }
  bool wants_cast() const { return value.data || rowwise.data || columnwise.data || tensor.raised; }
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

}  // namespace precbench::cuda
