// Shared by the dq and the dk/dv kernel of Hopper attention backward. A block keeps a tile's "own" rows, two
// matrices of 64 per math warpgroup or, at head width 256 in the dk/dv kernel, for both (q and dout, or k and v), and "streams" blocks of rows of the other two,
// which come through a ring. GEMMs of both give the scores and their gradients; the results are written
// through the memory of the own rows.
#pragma once

#include "kernels/cuda/attention/hopper_backward.h"
#include "kernels/cuda/attention/hopper_tiles.cuh"
#include "kernels/cuda/attention/softcap.cuh"
#include "kernels/cuda/vector.cuh"

namespace precbench::hopper {

/// Compile-time shape. Registers per thread: 65,536 in all. A kernel with more sums takes more of them from
/// the producer.
template <int kHeadOf, int kStreamedRowsOf, int kStagesOf, int kBuffersOf, bool kManySums, bool kCappedOf>
struct BwdShape {
  static constexpr bool kCapped = kCappedOf;  ///< scores are soft-capped
  static constexpr bool kWide = false;        ///< one math warpgroup computes dv, the other dk
  static constexpr int kHead = kHeadOf;
  static constexpr int kStreamedRows = kStreamedRowsOf;  ///< rows per block
  static constexpr int kStages = kStagesOf;              ///< blocks in shared memory
  static constexpr int kBuffers = kBuffersOf;            ///< tiles' own rows in shared memory
  static constexpr int kMathWarpgroups = 2;
  static constexpr int kOwnBlocks = kMathWarpgroups;  ///< blocks of 64 own rows in a tile
  static constexpr int kOwn = kOwnBlocks * kRows;     ///< rows of a tile
  static constexpr int kThreads = (kMathWarpgroups + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = kManySums ? 24 : 40, kMathRegisters = kManySums ? 240 : 232;
  static constexpr int kBoxes = kHead / kBoxColumns;
  static constexpr int kScores = kStreamedRows / 2, kOuts = kHead / 2;  ///< accumulators per thread
  static constexpr int kStreamedBytes = kStreamedRows * kTileRowBytes;  ///< of a box of a block
  static constexpr int kStageStep =
      2 * kBoxes * kStreamedBytes / 16;  ///< increment of a descriptor for the next stage
};

/// Values: additional data of a block.
template <class S, class Values>
struct alignas(1024) BwdShared {
  std::uint8_t own[S::kBuffers][2][S::kOwnBlocks][S::kBoxes][kRowsBytes];
  std::uint8_t streamed[S::kStages][2][S::kBoxes][S::kStreamedBytes];
  Values values;
  Barrier own_full[S::kBuffers], own_empty[S::kBuffers];
  Barrier full[S::kStages], empty[S::kStages];

  __device__ void init() {
    init_ring(own_full, own_empty, S::kBuffers, S::kMathWarpgroups);
    init_ring(full, empty, S::kStages, S::kMathWarpgroups * 4);
  }

  /// Producer: loads own rows from `row` and `column` on.
  __device__ void load_own(const BackwardMaps& maps, int sequence, int row, int column,
                           PipelineState<S::kBuffers>& state) {
    Barrier& barrier = own_full[state.stage];
    own_empty[state.stage].wait(state.parity ^ 1);
    barrier.arrive_expect_tx(sizeof(own[0]));
#pragma unroll
    for (int i = 0; i < 2 * S::kOwnBlocks; ++i)
      load_head(own[state.stage][i / S::kOwnBlocks][i % S::kOwnBlocks], maps.own[i / S::kOwnBlocks], sequence,
                row + i % S::kOwnBlocks * kRows, column, barrier);
    state.next();
  }

  /// Producer: loads the next block. load_more(i, barrier) issues the additional loads with its matrix i,
  /// `more` bytes in all.
  template <class LoadMore>
  __device__ void load_streamed(const BackwardMaps& maps, int sequence, int row, int column, int more,
                                LoadMore&& load_more, PipelineState<S::kStages>& state) {
    Barrier& barrier = full[state.stage];
    empty[state.stage].wait(state.parity ^ 1);
    barrier.arrive_expect_tx(static_cast<int>(sizeof(streamed[0])) + more);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_head(streamed[state.stage][i], maps.streamed[i], sequence, row, column, barrier);
      load_more(i, barrier);
    }
    state.next();
  }

  /// Math warpgroup: waits for its tile's own rows. With two buffers, releases that of the previous tile once
  /// its results have been stored.
  __device__ void await_own(const PipelineState<S::kBuffers>& state, int round, int thread) {
    own_full[state.stage].wait(state.parity);
    if (S::kBuffers == 2 && thread == 0 && round > 0) {
      tma_store_wait_group_read<0>();
      own_empty[state.stage ^ 1].arrive();
    }
  }

  /// First thread of a math warpgroup, after its stores: with one buffer it waits for them at once.
  __device__ void release_own(const PipelineState<S::kBuffers>& state) {
    if (S::kBuffers == 1) {
      tma_store_wait_group_read<0>();
      own_empty[state.stage].arrive();
    }
  }
};

}  // namespace precbench::hopper
