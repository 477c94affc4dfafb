// The GEMM for Hopper that accumulates all of k in the tensor cores: BF16, and FP8 with fast accumulation.
// D[M,N] = A[M,k] B[N,k]^T; a BF16 operand may also be stored transposed, as k rows of M or N.
//
// Blocks are persistent and compute one 128 x 256 tile of D after another. Two blocks form a cluster, whose
// tiles are either one below the other and share the rows of B, or side by side and share those of A:
//
//                  global memory / L2
//                         |  TMA: boxes of 64 rows of A and B, 128 bytes each. Of shared boxes each block
//                         |  loads one half for both (multicast)
//                         v
//   producer   [ stage 0 ][ stage 1 ][ stage 2 ][ stage 3 ]   a ring in shared memory: 64 of k, FP8 128
//   1 thread       |  full: bytes have arrived  ^  empty: both warpgroups of both blocks have read the stage
//                  v                            |
//   warpgroup 1   wgmma: total += 64 x 256 x stage      one stage's wgmmas are queued behind the last's, and
//   warpgroup 2       wgmma: total += 64 x 256 x stage  a stage is released when those of the next are queued
//                  |
//                  |    warpgroup 2 starts some stages later and stays behind, so that one warpgroup has the
//                  v    tensor cores to itself while the other is here:
//   epilogue   total [* scale_a * scale_b] -> shared memory -> TMA -> D (stored, or added in FP32 by TMA)
//              while the producer already fills the ring for the next tile
//
// Boxes of an MN-major operand hold 64 of k in rows of 64 columns; the next columns
// are in the next box. The tensor cores read both layouts.
#pragma once

#include "kernels/cuda/gemm/persistent_sm90a.cuh"
#include "kernels/cuda/hopper/wgmma_bf16.cuh"

namespace precbench::hopper {

constexpr int kBoxRows = 64;  ///< rows of A and B per box
constexpr int kBoxBytes = kBoxRows * kTileRowBytes;
constexpr int kLagBarrier = 3;  ///< named barrier at which warpgroup 2 waits once

/// Compile-time shape of a kernel.
template <class AType, class BType, bool kAMnMajorOf, bool kBMnMajorOf, bool kScaled, Store kStoreD,
          int kClusterOf, int kLagOf>
struct PlainShape {
  using A = AType;
  using B = BType;
  static constexpr bool kIsBf16 = std::is_same_v<A, __nv_bfloat16>;
  static constexpr bool kAMnMajor = kAMnMajorOf, kBMnMajor = kBMnMajorOf;
  static constexpr bool kEpilogueScales = kScaled;  ///< with scales per row or per tensor
  static constexpr Store kStore = kStoreD;
  static constexpr bool kAdds = adds(kStore);
  static constexpr int kRows = 128, kColumns = 256;  ///< per tile
  static constexpr int kHalves = 1, kSums = kColumns / 2;
  static constexpr int kBlockK = kTileRowBytes / static_cast<int>(sizeof(A));  ///< k per stage
  static constexpr int kStages = 4;
  static constexpr int kCluster = kClusterOf;  ///< blocks that share rows of A or B
  static constexpr int kLag = kLagOf;          ///< stages by which warpgroup 2 starts later
  static constexpr int kDBoxes = 2;            ///< per warpgroup, for the epilogue
  using TileScales = TileEpilogueScales<kEpilogueScales, kHalves, kColumns>;
  static constexpr int kDColumns = kTileRowBytes / (is_f32(kStore) ? 4 : 2);  ///< per box of D
  static constexpr int kStageBytes = (kRows + kColumns) * kTileRowBytes;
  static constexpr int kProducerRegisters = 40, kMathRegisters = 232;
  static_assert(kLag < kStages);
  static_assert(sizeof(A) == sizeof(B) && (kIsBf16 || (!kAMnMajor && !kBMnMajor)));
};

template <class S>
struct alignas(1024) PlainShared {
  std::uint8_t a[S::kStages][S::kRows * kTileRowBytes];
  std::uint8_t b[S::kStages][S::kColumns * kTileRowBytes];
  std::uint8_t d[kMathWarpgroups][S::kDBoxes][kDBytes];
  typename S::TileScales epilogue_scales[kMathWarpgroups];
  Barrier full[S::kStages], empty[S::kStages];
};

struct PlainMaps {
  CUtensorMap a, b, d;
};

/// Loads an operand's boxes of a stage. Those shared by the cluster are loaded for both blocks, one half by
/// each.
template <int kBoxes, bool kMnMajor, int kCluster>
__device__ inline void load_boxes(std::uint8_t* to, const CUtensorMap* map, int row, int k, bool shared,
                                  int rank, Barrier& full) {
  constexpr int kShare = kBoxes / kCluster;
  if (kCluster > 1 && shared) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int box = rank * kShare + i, at = row + box * kBoxRows;
      tma_load_multicast_2d((1 << kCluster) - 1, to + box * kBoxBytes, map, kMnMajor ? k : at,
                            kMnMajor ? at : k, full);
    }
  } else {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const int at = row + box * kBoxRows;
      tma_load_2d(to + box * kBoxBytes, map, kMnMajor ? k : at, kMnMajor ? at : k, full);
    }
  }
}

/// total (+)= 64 rows of A by the tile's B over a stage.
template <class S, bool kFirst>
__device__ inline void multiply_stage_plain(float (&total)[S::kSums], std::uint64_t a, std::uint64_t b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const bool add = k > 0 || !kFirst;
    if constexpr (S::kIsBf16)
      wgmma_bf16<S::kAMnMajor, S::kBMnMajor>(total, a + k * (S::kAMnMajor ? kMnMajorStep : kKMajorStep),
                                             b + k * (S::kBMnMajor ? kMnMajorStep : kKMajorStep), add);
    else
      wgmma_fp8<typename S::A, typename S::B>(total, a + k * kNextK, b + k * kNextK, add);
  }
  wgmma_commit_group();
}

template <class S>
struct PlainMainloop {
  using Shape = S;
  using Shared = PlainShared<S>;
  using Maps = PlainMaps;
  struct Parameters {};
  Shared& shared;
  const Maps& maps;
  const Parameters& parameters;

  __device__ void load(const Tile& tile, int i, int rank, int stage) const {
    const int k = (tile.k_block + i) * S::kBlockK;
    Barrier& full = shared.full[stage];
    load_boxes<S::kRows / kBoxRows, S::kAMnMajor, S::kCluster>(shared.a[stage], &maps.a, tile.a_row, k,
                                                               tile.beside, rank, full);
    load_boxes<S::kColumns / kBoxRows, S::kBMnMajor, S::kCluster>(shared.b[stage], &maps.b, tile.b_row,
                                                                  tile.b_k + k, !tile.beside, rank, full);
  }

  __device__ void begin(int) const {}
  __device__ void end(int) const {}

  /// In the first tile, warpgroup 1 waits until warpgroup 0 is some stages ahead.
  template <class Order>
  __device__ void accumulate(const Tile& tile, int warpgroup, int thread, bool first,
                             PipelineState<S::kStages>& state, float (&total_of_tile)[1][S::kSums]) const {
    auto& total = total_of_tile[0];
    first = S::kLag > 0 && first;
    if (first && warpgroup == 1) named_barrier_sync(kLagBarrier, kMathWarpgroups * kWarpgroup);
    const bool lead = first && warpgroup == 0;
    const bool idle = warpgroup * kUnitRows >= tile.rows;  // after the end of a group
    if (idle || tile.k_blocks == 0) {
#pragma unroll
      for (int i = 0; i < S::kSums; ++i) total[i] = 0;
      if (lead) named_barrier_arrive(kLagBarrier, kMathWarpgroups * kWarpgroup);
      for (int i = 0; i < tile.k_blocks; ++i, state.next()) {
        shared.full[state.stage].wait(state.parity);
        release_stage<S::kCluster>(shared.empty[state.stage], thread);
      }
      return;
    }
    const std::uint64_t first_a = smem_descriptor(shared.a[0] + warpgroup * kBoxBytes),
                        first_b = S::kBMnMajor ? mn_major_descriptor(shared.b[0], kBoxBytes)
                                               : smem_descriptor(shared.b[0]);
    int before = state.stage;  // the previous stage
    shared.full[before].wait(state.parity);
    multiply_stage_plain<S, true>(total, descriptor_at_row(first_a, before * S::kRows),
                                  descriptor_at_row(first_b, before * S::kColumns));
    state.next();
    for (int i = 1; i < tile.k_blocks; ++i, state.next()) {
      const int stage = state.stage;
      shared.full[stage].wait(state.parity);
      multiply_stage_plain<S, false>(total, descriptor_at_row(first_a, stage * S::kRows),
                                     descriptor_at_row(first_b, stage * S::kColumns));
      wgmma_wait_group<1>();
      release_stage<S::kCluster>(shared.empty[before], thread);
      before = stage;
      if (lead && i == S::kLag) named_barrier_arrive(kLagBarrier, kMathWarpgroups * kWarpgroup);
    }
    wgmma_wait_group(total);
    release_stage<S::kCluster>(shared.empty[before], thread);
    if (lead && tile.k_blocks <= S::kLag) named_barrier_arrive(kLagBarrier, kMathWarpgroups * kWarpgroup);
  }
};

}  // namespace precbench::hopper
