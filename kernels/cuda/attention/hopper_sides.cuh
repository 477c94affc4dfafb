// What the two sides of attention's backward pass for Hopper have in common. Of a tile a block of threads has "own" rows,
// two matrices of 64 for each math warpgroup (q and dout, or k and v), and "meets" blocks of rows of the two others, which
// come through a ring. Products of both make the scores and their gradients; the results leave through the place of the
// own rows.
#pragma once

#include "kernels/cuda/attention/hopper_backward.h"
#include "kernels/cuda/attention/hopper_tiles.cuh"
#include "kernels/cuda/vector.cuh"

namespace precbench::hopper {

/// Registers of a thread: 65,536 in all. A side with more sums takes more of them from the producer.
template <int kHeadOf, int kMetOf, int kStagesOf, int kBuffersOf, bool kManySums>
struct SideShape {
  static constexpr int kHead = kHeadOf;
  static constexpr int kMet = kMetOf;          ///< rows of a block
  static constexpr int kStages = kStagesOf;    ///< blocks in shared memory
  static constexpr int kBuffers = kBuffersOf;  ///< tiles' own rows in shared memory
  static constexpr int kMathWarpgroups = 2;
  static constexpr int kOwn = kMathWarpgroups * kRows;
  static constexpr int kThreads = (kMathWarpgroups + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = kManySums ? 24 : 40, kMathRegisters = kManySums ? 240 : 232;
  static constexpr int kBoxes = kHead / kBoxColumns;
  static constexpr int kScores = kMet / 2, kOuts = kHead / 2;  ///< accumulators of a thread
  static constexpr int kMetBytes = kMet * kTileRowBytes;       ///< of a box of a block
  static constexpr int kStageStep =
      2 * kBoxes * kMetBytes / 16;  ///< what a descriptor grows by for the next stage
};

/// Values: what else comes with a block.
template <class S, class Values>
struct alignas(1024) SideShared {
  std::uint8_t own[S::kBuffers][2][S::kMathWarpgroups][S::kBoxes][kRowsBytes];
  std::uint8_t met[S::kStages][2][S::kBoxes][S::kMetBytes];
  Values values;
  Barrier own_full[S::kBuffers], own_empty[S::kBuffers];
  Barrier full[S::kStages], empty[S::kStages];

  __device__ void init() {
    init_ring(own_full, own_empty, S::kBuffers, S::kMathWarpgroups);
    init_ring(full, empty, S::kStages, S::kMathWarpgroups * 4);
  }

  /// The producer's: own rows from `row` and `column` on.
  __device__ void load_own(const BackwardMaps& maps, int sequence, int row, int column,
                           Turn<S::kBuffers>& turn) {
    Barrier& barrier = own_full[turn.stage];
    own_empty[turn.stage].wait(turn.parity ^ 1);
    barrier.arrive_and_expect(sizeof(own[0]));
#pragma unroll
    for (int i = 0; i < 2 * S::kMathWarpgroups; ++i)
      load_head(own[turn.stage][i / S::kMathWarpgroups][i % S::kMathWarpgroups],
                maps.own[i / S::kMathWarpgroups], sequence, row + i % S::kMathWarpgroups * kRows, column,
                barrier);
    turn.next();
  }

  /// The producer's: the next block. load_more(i, barrier) asks for what else comes with its matrix i, `more` bytes in all.
  template <class LoadMore>
  __device__ void load_met(const BackwardMaps& maps, int sequence, int row, int column, int more,
                           LoadMore&& load_more, Turn<S::kStages>& turn) {
    Barrier& barrier = full[turn.stage];
    empty[turn.stage].wait(turn.parity ^ 1);
    barrier.arrive_and_expect(static_cast<int>(sizeof(met[0])) + more);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_head(met[turn.stage][i], maps.met[i], sequence, row, column, barrier);
      load_more(i, barrier);
    }
    turn.next();
  }

  /// A math warpgroup's: its tile's own rows are there. With two buffers, that of the tile before is free once its results
  /// have left.
  __device__ void await_own(const Turn<S::kBuffers>& turn, int round, int thread) {
    own_full[turn.stage].wait(turn.parity);
    if (S::kBuffers == 2 && thread == 0 && round > 0) {
      wait_until_read<0>();
      own_empty[turn.stage ^ 1].arrive();
    }
  }

  /// A math warpgroup's first thread's, after its stores: with one buffer it waits for them at once.
  __device__ void leave_own(const Turn<S::kBuffers>& turn) {
    if (S::kBuffers == 1) {
      wait_until_read<0>();
      own_empty[turn.stage].arrive();
    }
  }
};

}  // namespace precbench::hopper
