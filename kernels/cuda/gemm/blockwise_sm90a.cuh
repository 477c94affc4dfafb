// The FP8 GEMM for Hopper with FP32 accumulation: D[M,N] = A[M,k] B[N,k]^T, both K-major.
//
// A has a scale per row and 128 of k, B one per 128x128 block (fprop, dgrad) or per row and 128 of k (wgrad).
// Alternatively both have per-row or per-tensor scales, which are applied at the end. FP8 accumulation in the
// tensor cores keeps about 14 bits. A sum therefore stays there for 128 of k, one scale block, and is then
// scaled and added to an FP32 total in registers ("promoted"). plain_sm90a.cuh is the kernel without
// promotion.
//
// Blocks are persistent and compute one tile of D after another:
//
//                  global memory / L2
//                         |  TMA: boxes of A and B, 128 of k, and their scales
//                         v
//   producer   [ stage 0 ][ stage 1 ][ stage 2 ] ...        a ring in shared memory
//   1 thread       |  full: bytes have arrived  ^  empty: both warpgroups have read the stage
//                  v                            |
//   warpgroup 1   wgmma 64 x N x 128 -> part   | promote: total += scale_a * scale_b * part
//   warpgroup 2        promote of the block before | wgmma 64 x N x 128 -> part
//                  |                            ping-pong: while one promotes with the FP32 units,
//                  v                            the other uses the tensor cores
//   epilogue   total -> shared memory -> TMA -> D (stored, or added in FP32 by the copy engine)
//              while the producer already fills the ring for the next tile
//
// The order of turns is enforced if B has 1x128 scales; with 128x128 scales the warpgroups run
// unsynchronized. For BF16 accumulation into D, a tile's own warps read D, 16 bytes of a row at a time.
//
// A tile of 128 rows gives each warpgroup 64 of them; a tile of 256 rows two times 64, processed in turn with
// one set of registers for `part`. In a cluster of two blocks the tiles are side by side in D and share the
// rows of A: each block loads half of A's box for both (multicast), which saves L2 reads.
//
// The tile order alone determines the sequence of tiles and where their operands begin: groups of rows or of
// k are other orders for the same kernel.
#pragma once

#include "kernels/cuda/gemm/persistent_sm90a.cuh"

namespace precbench::hopper {

constexpr int kOrderBarrier = 3;  ///< named barriers by which the math warpgroups take turns

/// B's scales: per 128x128 block, or per row and 128 of k like A's; or both operands' per row or per tensor.
enum class Scales { block_128x128, block_1x128, row_or_tensor };

/// Compile-time shape of a kernel.
template <class AType, class BType, Scales kScalesOf, Store kStoreD, int kRowsOf, int kColumnsOf,
          int kStagesOf, int kClusterOf, int kDBoxesOf, int kPrefetchFromOf = 0>
struct BlockwiseShape {
  using A = AType;
  using B = BType;
  static constexpr bool kSquare = kScalesOf == Scales::block_128x128,
                        kBlocks = kScalesOf == Scales::block_1x128,
                        kEpilogueScales = kScalesOf == Scales::row_or_tensor;
  static constexpr Store kStore = kStoreD;
  static constexpr bool kAdds = adds(kStore);
  static constexpr int kBlockK = 128;                           ///< k per stage: one scale block
  static constexpr int kRows = kRowsOf, kColumns = kColumnsOf;  ///< per tile
  static constexpr int kStages = kStagesOf;
  static constexpr int kCluster = kClusterOf;  ///< blocks that share rows of A
  static constexpr int kDBoxes = kDBoxesOf;    ///< per warpgroup, for the epilogue
  /// Number of k blocks from which D is prefetched before the epilogue adds to it; 0: never.
  static constexpr int kPrefetchFrom = kPrefetchFromOf;
  /// The math warpgroups take turns at the tensor cores. That pays off with a scale per column, when
  /// promotion is long and both would promote at the same time; otherwise waiting costs more.
  static constexpr bool kPingPong = kBlocks;

  /// Registers per thread: 65,536 in all. Per-column scales need more of them in the math warpgroups.
  static constexpr int kProducerRegisters = kBlocks ? 24 : 40, kMathRegisters = kBlocks ? 240 : 232;

  static constexpr int kHalves = kRows / (kMathWarpgroups * 64);  ///< 64-row wgmmas of a warpgroup per stage
  static constexpr int kSums = kColumns / 2;                      ///< accumulators of a wgmma per thread
  using TileScales = TileEpilogueScales<kEpilogueScales, kHalves, kColumns>;
  static constexpr int kSquares =
      (kColumns + 127) / 128;  ///< square scale blocks touched by a tile's columns
  static constexpr int kAScales = kEpilogueScales ? 0 : kRows, kBScales = kSquare   ? kSquares * 4
                                                                          : kBlocks ? kColumns
                                                                                    : 0;
  static constexpr int kDColumns = kTileRowBytes / (is_f32(kStore) ? 4 : 2);  ///< per box of D
  static constexpr int kStageBytes =
      (kRows + kColumns) * kBlockK + (kAScales + kBScales) * static_cast<int>(sizeof(float));

  static_assert(kRows == 128 || kRows == 256);
  static_assert(kColumns == 128);  // N of an instruction
};

template <class S>
struct alignas(1024) BlockwiseShared {
  std::uint8_t a[S::kStages][S::kRows * S::kBlockK];
  std::uint8_t b[S::kStages][S::kColumns * S::kBlockK];
  std::uint8_t d[kMathWarpgroups][S::kDBoxes][kDBytes];
  typename S::TileScales epilogue_scales[kMathWarpgroups];
  alignas(128) float a_scale[S::kStages][S::kEpilogueScales ? 4 : S::kAScales];
  alignas(128) float b_scale[S::kStages][S::kEpilogueScales ? 4 : S::kBScales];
  Barrier full[S::kStages], empty[S::kStages];
};

struct BlockwiseMaps {
  CUtensorMap a, b, a_scale, b_scale, d;
};

/// B's 128x128 scales; with groups one group's after another.
struct SquareScales {
  const float* data;
  int row_blocks, pitch;  ///< row_blocks: of a group
};

/// B's scales that a thread needs for 128 of k: one per 64 columns of the tile with 128x128 scales, else
/// those of its two columns in each 8.
template <class S>
struct ColumnScales {
  float square[S::kSquare ? S::kColumns / 64 : 1];
  float2 column[S::kBlocks ? S::kColumns / 8 : 1];

  __device__ void load(const float* scales, const Tile& tile, int block) {
    if constexpr (S::kSquare) {
#pragma unroll
      for (int i = 0; i < S::kColumns / 64; ++i)
        square[i] = scales[(tile.d_column % 128 + i * 64) / 128 * 4 + block % 4];
    } else if constexpr (S::kBlocks) {
      const auto* mine = reinterpret_cast<const float2*>(scales) + threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < S::kColumns / 8; ++i) column[i] = mine[4 * i];
    }
  }
};

/// total += scale_a scale_b part, for one wgmma's 64 rows; the thread's two rows have scales a0 and a1. With
/// per-column scales it multiplies by B's scale first. Then two instructions read two registers each, plus a
/// reused one, instead of one and three: the register file has too few ports for that while the tensor cores
/// use it too.
template <class S>
__device__ inline void promote(float (&total)[S::kSums], const float (&part)[S::kSums], float a0, float a1,
                               const ColumnScales<S>& scales) {
  if constexpr (S::kEpilogueScales) {
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) total[i] += part[i];
  } else if constexpr (S::kSquare) {
#pragma unroll
    for (int some = 0; some < S::kColumns / 64; ++some) {
      const float s0 = a0 * scales.square[some], s1 = a1 * scales.square[some];
#pragma unroll
      for (int g = some * 8; g < some * 8 + 8; ++g) {
        total[4 * g] += s0 * part[4 * g];
        total[4 * g + 1] += s0 * part[4 * g + 1];
        total[4 * g + 2] += s1 * part[4 * g + 2];
        total[4 * g + 3] += s1 * part[4 * g + 3];
      }
    }
  } else {
#pragma unroll
    for (int g = 0; g < S::kColumns / 8; ++g) {
      const float2 b = scales.column[g];
      total[4 * g] += a0 * (b.x * part[4 * g]);
      total[4 * g + 1] += a0 * (b.y * part[4 * g + 1]);
      total[4 * g + 2] += a1 * (b.x * part[4 * g + 2]);
      total[4 * g + 3] += a1 * (b.y * part[4 * g + 3]);
    }
  }
}

/// part = 64 rows of A by the tile's B over a stage. The warpgroup whose turn it is issues its wgmmas. It
/// passes the turn on when one of its four is left, so that the other's first is ready when the tensor cores
/// are.
template <class S>
__device__ inline void multiply_stage(float (&part)[S::kSums], std::uint64_t a, std::uint64_t b,
                                      int warpgroup) {
  constexpr int kProducts = S::kBlockK / kWgmmaK;
  if constexpr (S::kPingPong) named_barrier_sync(kOrderBarrier + warpgroup, kMathWarpgroups * kWarpgroup);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kProducts; ++k) {
    wgmma_fp8<typename S::A, typename S::B>(part, a + k * kNextK, b + k * kNextK, k > 0);
    if (S::kPingPong && k == kProducts - 2) wgmma_commit_group();
  }
  wgmma_commit_group();
}

template <class S>
__device__ inline void order_barrier_arrive(int warpgroup) {
  if constexpr (S::kPingPong) {
    wgmma_wait_group<1>();
    named_barrier_arrive(kOrderBarrier + 1 - warpgroup, kMathWarpgroups * kWarpgroup);
  }
}

template <class S>
__device__ inline void order_barrier_skip(int warpgroup) {
  if constexpr (S::kPingPong) {
    named_barrier_sync(kOrderBarrier + warpgroup, kMathWarpgroups * kWarpgroup);
    named_barrier_arrive(kOrderBarrier + 1 - warpgroup, kMathWarpgroups * kWarpgroup);
  }
}

template <class S>
struct BlockwiseMainloop {
  using Shape = S;
  using Shared = BlockwiseShared<S>;
  using Maps = BlockwiseMaps;
  using Parameters = SquareScales;
  Shared& shared;
  const Maps& maps;
  const SquareScales& squares;

  __device__ void load(const Tile& tile, int i, int rank, int stage) const {
    constexpr int kBlockK = S::kBlockK;
    const int block = tile.k_block + i;
    Barrier& full = shared.full[stage];
    if constexpr (S::kCluster == 1) {
      tma_load_2d(shared.a[stage], &maps.a, tile.a_row, block * kBlockK, full);
    } else {
      constexpr int kShare = S::kRows / S::kCluster;
      tma_load_multicast_2d((1 << S::kCluster) - 1, shared.a[stage] + rank * kShare * kBlockK, &maps.a,
                            tile.a_row + rank * kShare, block * kBlockK, full);
    }
    tma_load_2d(shared.b[stage], &maps.b, tile.b_row, block * kBlockK, full);
    if constexpr (!S::kEpilogueScales)
      tma_load_2d(shared.a_scale[stage], &maps.a_scale, block, tile.a_row, full);
    if constexpr (S::kSquare) {
#pragma unroll
      for (int square = 0; square < S::kSquares; ++square) {
        const int row = tile.group * squares.row_blocks +
                        min(tile.d_column / 128 + square, squares.row_blocks - 1);
        tma_load_1d(&shared.b_scale[stage][square * 4],
                    squares.data + static_cast<std::int64_t>(row) * squares.pitch + block / 4 * 4,
                    4 * sizeof(float), full);
      }
    } else if constexpr (S::kBlocks) {
      tma_load_2d(shared.b_scale[stage], &maps.b_scale, block, tile.b_row, full);
    }
    if constexpr (S::kPrefetchFrom > 0) prefetch_before<S>(&maps.d, tile, i);
  }

  /// Gives warpgroup 0 the first turn.
  __device__ void begin(int warpgroup) const {
    if (S::kPingPong && warpgroup == 1) named_barrier_arrive(kOrderBarrier, kMathWarpgroups * kWarpgroup);
  }
  /// Takes the last turn, which nobody needs.
  __device__ void end(int warpgroup) const {
    if (S::kPingPong && warpgroup == 0) named_barrier_sync(kOrderBarrier, kMathWarpgroups * kWarpgroup);
  }

  template <class Order>
  __device__ void accumulate(const Tile& tile, int warpgroup, int thread, bool,
                             PipelineState<S::kStages>& state, float (&total)[S::kHalves][S::kSums]) const {
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half)
#pragma unroll
      for (int i = 0; i < S::kSums; ++i) total[half][i] = 0;

    constexpr int kNextHalf = (unit_of<S, Order>(0, 1) - unit_of<S, Order>(0, 0)) * kUnitRows;
    const int first_row = unit_of<S, Order>(warpgroup, 0) * kUnitRows;
    const float* a_scale = shared.a_scale[0] + first_row + thread / 32 * 16 + thread % 32 / 4;
    const std::uint64_t first_a = smem_descriptor(shared.a[0] + first_row * S::kBlockK),
                        first_b = smem_descriptor(shared.b[0]);
    for (int i = 0; i < tile.k_blocks; ++i, state.next()) {
      const int stage = state.stage;
      shared.full[stage].wait(state.parity);
      const std::uint64_t a = descriptor_at_row(first_a, stage * S::kRows),
                          b = descriptor_at_row(first_b, stage * S::kColumns);
      ColumnScales<S> scales;
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        if (Order::kReadsGroups && half * kNextHalf + first_row >= tile.rows) {  // after the end of a group
          order_barrier_skip<S>(warpgroup);
          continue;
        }
        float part[S::kSums];
        multiply_stage<S>(part, descriptor_at_row(a, half * kNextHalf), b, warpgroup);
        float a0 = 1, a1 = 1;
        if constexpr (!S::kEpilogueScales) {
          a0 = a_scale[stage * S::kRows + half * kNextHalf];
          a1 = a_scale[stage * S::kRows + half * kNextHalf + 8];
        }
        if (half == 0) scales.load(shared.b_scale[stage], tile, tile.k_block + i);
        order_barrier_arrive<S>(warpgroup);
        wgmma_wait_group(part);
        promote<S>(total[half], part, a0, a1, scales);
      }
      __syncwarp();  // its lanes have read their scales
      release_stage<S::kCluster>(shared.empty[stage], thread);
    }
  }
};

}  // namespace precbench::hopper
