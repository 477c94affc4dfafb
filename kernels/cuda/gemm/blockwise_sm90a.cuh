// The FP8 GEMM for Hopper with sums in FP32: D[M,N] = A[M,k] B[N,k]^T, both read along k.
//
// A has a scale for each row and 128 of k, B one for each 128x128 block (fprop, dgrad) or each row and 128 of k (wgrad); or
// both have scales of rows or of the tensor, which wait for the end. Sums in the tensor cores keep about 14 bits with FP8,
// so a sum stays there for 128 of k, one block of the scales, and is then scaled and added to an FP32 total in registers
// ("promoted"). Where that is not asked for, plain_sm90a.cuh is the kernel.
//
// A block of threads stays on its multiprocessor and makes one tile of D after another:
//
//                  global memory / L2
//                         |  TMA: boxes of A and B, 128 of k, and their scales
//                         v
//   producer   [ stage 0 ][ stage 1 ][ stage 2 ] ...        a ring in shared memory
//   1 thread       |  full: bytes are there   ^  empty: both warpgroups are done with the stage
//                  v                          |
//   warpgroup 1   wgmma 64 x N x 128 -> part   | promote: total += scale_a * scale_b * part
//   warpgroup 2        promote of the block before | wgmma 64 x N x 128 -> part
//                  |                            the two run against each other: while one promotes with the
//                  v                            FP32 units, the other has the tensor cores
//   epilogue   total -> shared memory -> TMA -> D (stored, or added in FP32 by the copy engine)
//              while the producer already fills the ring for the next tile
//
// The turns are kept where B has scales of 1x128; with one scale for a square of B the warpgroups run as they come. BF16 that
// is added to is read by a tile's own warps, 16 bytes of a row at a time.
//
// A tile of 128 rows gives each warpgroup 64 of them; a tile of 256 rows two times 64, which it takes in turn, with one
// set of registers for `part`. With a cluster of two blocks their tiles stand side by side in D and share the rows
// of A: each loads one half of A's box for both, which saves reads of L2.
//
// Which tile comes when, and where its operands begin, is the tile order's business alone: groups of rows or of k are
// other orders for the same kernel.
#pragma once

#include "kernels/cuda/gemm/epilogue_sm90a.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::hopper {

constexpr int kTurns = 3;  ///< the named barriers by which the math warpgroups take turns

/// B's scales: of 128x128 blocks, or of a row and 128 of k, as A's are; both operands' of whole rows or of the tensor.
enum class Scales { squares, blocks, ends };

/// A kernel's shape.
template <class AType, class BType, Scales kScalesOf, Store kStoreD, int kRowsOf, int kColumnsOf,
          int kStagesOf, int kClusterOf, int kDBoxesOf, int kPrefetchFromOf = 0>
struct Shape {
  using A = AType;
  using B = BType;
  static constexpr bool kSquare = kScalesOf == Scales::squares, kBlocks = kScalesOf == Scales::blocks,
                        kEnds = kScalesOf == Scales::ends;
  static constexpr Store kStore = kStoreD;
  static constexpr bool kAdds = adds(kStore);
  static constexpr int kBlockK = 128;                           ///< of k in a stage: a block of the scales
  static constexpr int kRows = kRowsOf, kColumns = kColumnsOf;  ///< of a tile
  static constexpr int kStages = kStagesOf;
  static constexpr int kCluster = kClusterOf;  ///< blocks that share rows of A
  static constexpr int kDBoxes = kDBoxesOf;    ///< that a warpgroup has for the epilogue
  /// Blocks of k from which on what is in D is asked for before the epilogue adds to it; 0: never.
  static constexpr int kPrefetchFrom = kPrefetchFromOf;
  /// The math warpgroups take turns at the tensor cores. That pays with a scale for every column, as the promotion is
  /// long and both would promote at one time; else the waiting costs more than it gives.
  static constexpr bool kTakeTurns = kBlocks;

  /// Registers of a thread: 65,536 in all. Scales by columns need more of them in the math warpgroups.
  static constexpr int kProducerRegisters = kBlocks ? 24 : 40, kMathRegisters = kBlocks ? 240 : 232;

  static constexpr int kHalves =
      kRows / (kMathWarpgroups * 64);         ///< products of 64 rows a warpgroup makes of a stage
  static constexpr int kSums = kColumns / 2;  ///< accumulators of a product, per thread
  using Ends = TileEnds<kEnds, kHalves, kColumns>;
  static constexpr int kSquares = (kColumns + 127) / 128;  ///< square blocks that a tile's columns touch
  static constexpr int kAScales = kEnds ? 0 : kRows, kBScales = kSquare   ? kSquares * 4
                                                                : kBlocks ? kColumns
                                                                          : 0;
  static constexpr int kDColumns = kTileRowBytes / (is_f32(kStore) ? 4 : 2);  ///< of a box of D
  static constexpr int kStageBytes =
      (kRows + kColumns) * kBlockK + (kAScales + kBScales) * static_cast<int>(sizeof(float));

  static_assert(kRows == 128 || kRows == 256);
  static_assert(kColumns == 128);  // those of an instruction
};

template <class S>
struct alignas(1024) Shared {
  std::uint8_t a[S::kStages][S::kRows * S::kBlockK];
  std::uint8_t b[S::kStages][S::kColumns * S::kBlockK];
  std::uint8_t d[kMathWarpgroups][S::kDBoxes][kDBytes];
  typename S::Ends ends[kMathWarpgroups];
  alignas(128) float a_scale[S::kStages][S::kEnds ? 4 : S::kAScales];
  alignas(128) float b_scale[S::kStages][S::kEnds ? 4 : S::kBScales];
  Barrier full[S::kStages], empty[S::kStages];
};

struct Maps {
  CUtensorMap a, b, a_scale, b_scale, d;
};

struct SquareScales {
  const float* data;
  int row_blocks, pitch;
};

/// The one thread that asks for copies.
template <class S, class Order>
__device__ void produce(Shared<S>& shared, const Maps& maps, const SquareScales& squares, const Order& order,
                        int rank, int cluster, int clusters) {
  constexpr int kBlockK = S::kBlockK;
  Turn<S::kStages> turn;
  typename Order::Cursor at;
  Tile tile;
  for (int index = cluster; order.template find<S>(index, rank, at, tile); index += clusters) {
    for (int i = 0; i < tile.k_blocks; ++i, turn.next()) {
      const int block = tile.k_block + i, stage = turn.stage;
      Barrier& full = shared.full[stage];
      shared.empty[stage].wait(turn.parity ^ 1);
      full.arrive_and_expect(S::kStageBytes);
      if constexpr (S::kCluster == 1) {
        load_box(shared.a[stage], &maps.a, tile.a_row, block * kBlockK, full);
      } else {
        constexpr int kShare = S::kRows / S::kCluster;
        load_box_to((1 << S::kCluster) - 1, shared.a[stage] + rank * kShare * kBlockK, &maps.a,
                    tile.a_row + rank * kShare, block * kBlockK, full);
      }
      load_box(shared.b[stage], &maps.b, tile.b_row, block * kBlockK, full);
      if constexpr (!S::kEnds) load_box(shared.a_scale[stage], &maps.a_scale, block, tile.a_row, full);
      if constexpr (S::kSquare) {
#pragma unroll
        for (int square = 0; square < S::kSquares; ++square) {
          const int row = min(tile.b_row / 128 + square, squares.row_blocks - 1);
          load_bytes(&shared.b_scale[stage][square * 4],
                     squares.data + static_cast<std::int64_t>(row) * squares.pitch + block / 4 * 4,
                     4 * sizeof(float), full);
        }
      } else if constexpr (S::kBlocks) {
        load_box(shared.b_scale[stage], &maps.b_scale, block, tile.b_row, full);
      }
      if constexpr (S::kPrefetchFrom > 0) prefetch_before<S>(&maps.d, tile, i);
    }
  }
}

/// The scales of B that a thread needs for 128 of k: one for each 64 columns of the tile where they belong to squares,
/// else those of its two columns in each 8.
template <class S>
struct ColumnScales {
  float square[S::kSquare ? S::kColumns / 64 : 1];
  float2 column[S::kBlocks ? S::kColumns / 8 : 1];

  __device__ void load(const float* scales, int b_row, int block) {
    if constexpr (S::kSquare) {
#pragma unroll
      for (int i = 0; i < S::kColumns / 64; ++i)
        square[i] = scales[(b_row % 128 + i * 64) / 128 * 4 + block % 4];
    } else if constexpr (S::kBlocks) {
      const auto* mine = reinterpret_cast<const float2*>(scales) + threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < S::kColumns / 8; ++i) column[i] = mine[4 * i];
    }
  }
};

/// total += scale_a scale_b part, for one product's 64 rows; the thread's two rows have scales a0 and a1. By columns it
/// multiplies with B's scale first: two instructions then read two registers each, beside one that stays at hand,
/// instead of one and three, of which the register file has not enough ports while the tensor cores use it too.
template <class S>
__device__ inline void promote(float (&total)[S::kSums], const float (&part)[S::kSums], float a0, float a1,
                               const ColumnScales<S>& scales) {
  if constexpr (S::kEnds) {
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

/// part = 64 rows of A by the tile's B over a stage. Whose turn it is issues; the turn passes on when but one of the
/// four products is left, so that the other warpgroup's first one is ready when the tensor cores are.
template <class S>
__device__ inline void multiply_stage(float (&part)[S::kSums], std::uint64_t a, std::uint64_t b,
                                      int warpgroup) {
  constexpr int kProducts = S::kBlockK / kProductK;
  if constexpr (S::kTakeTurns) synchronize_some(kTurns + warpgroup, kMathWarpgroups * kWarpgroup);
  begin_products();
#pragma unroll
  for (int k = 0; k < kProducts; ++k) {
    multiply<typename S::A, typename S::B>(part, a + k * kNextK, b + k * kNextK, k > 0);
    if (S::kTakeTurns && k == kProducts - 2) end_products();
  }
  end_products();
}

template <class S>
__device__ inline void pass_turn(int warpgroup) {
  if constexpr (S::kTakeTurns) {
    await_all_but<1>();
    arrive_at_some(kTurns + 1 - warpgroup, kMathWarpgroups * kWarpgroup);
  }
}

template <class S>
__device__ inline void skip_turn(int warpgroup) {
  if constexpr (S::kTakeTurns) {
    synchronize_some(kTurns + warpgroup, kMathWarpgroups * kWarpgroup);
    arrive_at_some(kTurns + 1 - warpgroup, kMathWarpgroups * kWarpgroup);
  }
}

/// One tile's totals, by one warpgroup.
template <class S, class Order>
__device__ inline void accumulate(Shared<S>& shared, const Tile& tile, int warpgroup, int thread,
                                  Turn<S::kStages>& turn, float (&total)[S::kHalves][S::kSums]) {
#pragma unroll
  for (int half = 0; half < S::kHalves; ++half)
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) total[half][i] = 0;

  constexpr int kNextHalf = (unit_of<S, Order>(0, 1) - unit_of<S, Order>(0, 0)) * kUnitRows;
  const int first_row = unit_of<S, Order>(warpgroup, 0) * kUnitRows;
  const float* a_scale = shared.a_scale[0] + first_row + thread / 32 * 16 + thread % 32 / 4;
  const std::uint64_t first_a = descriptor_of(shared.a[0] + first_row * S::kBlockK),
                      first_b = descriptor_of(shared.b[0]);
  for (int i = 0; i < tile.k_blocks; ++i, turn.next()) {
    const int stage = turn.stage;
    shared.full[stage].wait(turn.parity);
    const std::uint64_t a = below(first_a, stage * S::kRows), b = below(first_b, stage * S::kColumns);
    ColumnScales<S> scales;
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half) {
      if (Order::kReadsGroups && half * kNextHalf + first_row >= tile.rows) {  // behind the end of a group
        skip_turn<S>(warpgroup);
        continue;
      }
      float part[S::kSums];
      multiply_stage<S>(part, below(a, half * kNextHalf), b, warpgroup);
      float a0 = 1, a1 = 1;
      if constexpr (!S::kEnds) {
        a0 = a_scale[stage * S::kRows + half * kNextHalf];
        a1 = a_scale[stage * S::kRows + half * kNextHalf + 8];
      }
      if (half == 0) scales.load(shared.b_scale[stage], tile.b_row, tile.k_block + i);
      pass_turn<S>(warpgroup);
      await_products(part);
      promote<S>(total[half], part, a0, a1, scales);
    }
    __syncwarp();  // its lanes have read their scales
    give_back<S::kCluster>(shared.empty[stage], thread);
  }
}

template <class S, class Order>
__global__ __launch_bounds__(kThreads, 1)
    __cluster_dims__(S::kCluster) void multiply_blockwise(const __grid_constant__ Maps maps,
                                                          const SquareScales squares, const EndScales ends,
                                                          const Before before, const Order order) {
  wait_for_work_before();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<S>*>(shared_bytes);
  const int rank = S::kCluster == 1 ? 0 : rank_in_cluster();
  const int cluster = static_cast<int>(blockIdx.x) / S::kCluster;
  const int clusters = static_cast<int>(gridDim.x) / S::kCluster;
  begin_ring<S::kCluster>(shared.full, shared.empty, S::kCluster * kMathWarpgroups * 4);
  const int warpgroup = this_warpgroup() - 1;
  if (warpgroup < 0) {
    keep_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) produce<S>(shared, maps, squares, order, rank, cluster, clusters);
  } else {
    take_registers<S::kMathRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    Turn<S::kStages> turn;
    if (S::kTakeTurns && warpgroup == 1) arrive_at_some(kTurns, kMathWarpgroups * kWarpgroup);
    typename Order::Cursor at;
    Tile tile;
    for (int index = cluster; find_together<S>(order, index, rank, at, tile); index += clusters) {
      fetch_ends<S, Order>(shared.ends[warpgroup], ends, tile, warpgroup, thread);
      float total[S::kHalves][S::kSums];
      accumulate<S, Order>(shared, tile, warpgroup, thread, turn, total);
      store<S, Order>(shared.d[warpgroup], &maps.d, shared.ends[warpgroup], before, tile, warpgroup, thread,
                      total);
    }
    if (S::kTakeTurns && warpgroup == 0) synchronize_some(kTurns, kMathWarpgroups * kWarpgroup);
    if (thread == 0) wait_until_read<0>();
  }
  // No block leaves while another may still write to its shared memory or arrive at its barriers.
  if constexpr (S::kCluster > 1) synchronize_cluster();
#endif
}

}  // namespace precbench::hopper
