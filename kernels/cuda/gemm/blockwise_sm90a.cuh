// The FP8 GEMM for Hopper with scales of blocks: D[M,N] = A[M,k] B[N,k]^T, both read along k.
//
// A has a scale for each row and 128 of k, B one for each 128x128 block (fprop, dgrad) or each row and 128 of k (wgrad).
// Sums in the tensor cores keep about 14 bits with FP8, so a sum stays there for 128 of k, one block of the scales, and
// is then scaled and added to an FP32 total in registers ("promoted").
//
// A block of threads stays on its multiprocessor and makes one tile of D after another:
//
//                  global memory / L2
//                         |  TMA: boxes of A and B, 128 of k, and their scales
//                         v
//   producer   [ stage 0 ][ stage 1 ][ stage 2 ] ...        a ring in shared memory
//   1 warp         |  full: bytes are there   ^  empty: both warpgroups are done with the stage
//                  v                          |
//   warpgroup 1   wgmma 64 x N x 128 -> part   | promote: total += scale_a * scale_b * part
//   warpgroup 2        promote of the block before | wgmma 64 x N x 128 -> part
//                  |                            the two run against each other: while one promotes with the
//                  v                            FP32 units, the other has the tensor cores
//   epilogue   total -> shared memory -> TMA -> D (stored, or added in FP32 by the copy engine)
//              while the producer already fills the ring for the next tile
//
// A tile of 128 rows gives each warpgroup 64 of them; a tile of 256 rows 128, which it takes as two halves in turn, with
// one set of registers for `part`. With a cluster of two blocks their tiles stand side by side in D and share the rows
// of A: each loads one half of A's box for both, which saves reads of L2.
//
// Which tile comes when, and where its operands begin, is the tile order's business alone: groups of rows or of k are
// other orders for the same kernel.
#pragma once

#include "kernels/cuda/hopper/pipeline.cuh"
#include "kernels/cuda/hopper/tma.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"

namespace precbench::hopper {

constexpr int kBlockK = 128;     ///< of k in a stage: a block of the scales
constexpr int kMathWarpgroups = 2;
constexpr int kThreads = (kMathWarpgroups + 1) * kWarpgroup;
constexpr int kTurns = 3;   ///< the named barriers by which the math warpgroups take turns
constexpr int kDRows = 64;  ///< of D that leave in one box: those of an instruction
constexpr int kDBytes = kDRows * kTileRowBytes;  ///< of such a box

/// What happens to D.
enum class Store { bf16, bf16_add, f32, f32_add };
constexpr bool is_f32(Store store) { return store == Store::f32 || store == Store::f32_add; }

/// A kernel's shape.
template <class AType, class BType, bool kSquareB, Store kStoreD, int kRowsOf, int kColumnsOf, int kStagesOf,
          int kClusterOf, int kDBoxesOf>
struct Shape {
  using A = AType;
  using B = BType;
  static constexpr bool kSquare = kSquareB;  ///< B's scales belong to 128x128 blocks
  static constexpr Store kStore = kStoreD;
  static constexpr int kRows = kRowsOf, kColumns = kColumnsOf;  ///< of a tile
  static constexpr int kStages = kStagesOf;
  static constexpr int kCluster = kClusterOf;  ///< blocks that share rows of A
  static constexpr int kDBoxes = kDBoxesOf;    ///< that a warpgroup has for the epilogue
  /// The math warpgroups take turns at the tensor cores. That pays with a scale for every column, as the promotion is
  /// long and both would promote at one time; with scales of squares the waiting costs more than it gives.
  static constexpr bool kTakeTurns = !kSquare;

  /// Registers of a thread: 65,536 in all. Scales by columns need more of them in the math warpgroups.
  static constexpr int kProducerRegisters = kSquare ? 40 : 24, kMathRegisters = kSquare ? 232 : 240;

  static constexpr int kHalves =
      kRows / (kMathWarpgroups * 64);         ///< products of 64 rows a warpgroup makes of a stage
  static constexpr int kSums = kColumns / 2;  ///< accumulators of a product, per thread
  static constexpr int kSquares = (kColumns + 127) / 128;  ///< square blocks that a tile's columns touch
  static constexpr int kBScales = kSquare ? kSquares * 4 : kColumns;
  static constexpr int kDColumns = kTileRowBytes / (is_f32(kStore) ? 4 : 2);  ///< of a box of D
  static constexpr int kStageBytes =
      (kRows + kColumns) * kBlockK + (kRows + kBScales) * static_cast<int>(sizeof(float));

  static_assert(kRows == 128 || kRows == 256);
  static_assert(kColumns == 128);  // those of an instruction
};

template <class S>
struct alignas(1024) Shared {
  std::uint8_t a[S::kStages][S::kRows * kBlockK];
  std::uint8_t b[S::kStages][S::kColumns * kBlockK];
  std::uint8_t d[kMathWarpgroups][S::kDBoxes][kDBytes];
  float a_scale[S::kStages][S::kRows];
  alignas(128) float b_scale[S::kStages][S::kBScales];
  Barrier full[S::kStages], empty[S::kStages];
};

/// Where a tile's operands and its place in D begin.
struct Tile {
  int a_row, b_row;
  int k_block, k_blocks;
  int d_row, d_column;
};

/// The tiles of one product. Bands of `band` tile rows; within a band column after column, so that the tiles which run
/// at one time are about as high as wide and read few different rows of A and B.
struct DenseOrder {
  int row_tiles, column_tiles;  ///< in tiles of a cluster
  int band, k_blocks;

  __device__ int count() const { return row_tiles * column_tiles; }

  template <class S>
  __device__ Tile at(int index, int rank) const {
    const int per_band = band * column_tiles;
    const int first = index / per_band * band, height = min(band, row_tiles - first);
    const int within = index % per_band;
    const int row = (first + within % height) * S::kRows;
    const int column = (within / height * S::kCluster + rank) * S::kColumns;
    return {row, column, 0, k_blocks, row, column};
  }
};

struct Maps {
  CUtensorMap a, b, a_scale, b_scale, d;
};

struct SquareScales {
  const float* data;
  int row_blocks, pitch;
};

/// D, where a BF16 sum is added to what is in it.
struct Before {
  const __nv_bfloat16* data;
  int rows, columns;
};

/// The one thread that asks for copies.
template <class S, class Order>
__device__ void produce(Shared<S>& shared, const Maps& maps, const SquareScales& squares, const Order& order,
                        int rank, int cluster, int clusters) {
  Turn<S::kStages> turn;
  for (int index = cluster; index < order.count(); index += clusters) {
    const Tile tile = order.template at<S>(index, rank);
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
      load_box(shared.a_scale[stage], &maps.a_scale, block, tile.a_row, full);
      if constexpr (S::kSquare) {
#pragma unroll
        for (int square = 0; square < S::kSquares; ++square) {
          const int row = min(tile.b_row / 128 + square, squares.row_blocks - 1);
          load_bytes(&shared.b_scale[stage][square * 4],
                     squares.data + static_cast<std::int64_t>(row) * squares.pitch + block / 4 * 4,
                     4 * sizeof(float), full);
        }
      } else {
        load_box(shared.b_scale[stage], &maps.b_scale, block, tile.b_row, full);
      }
    }
  }
}

/// The scales of B that a thread needs for 128 of k: one for each 64 columns of the tile where they belong to squares,
/// else those of its two columns in each 8.
template <class S>
struct ColumnScales {
  float square[S::kSquare ? S::kColumns / 64 : 1];
  float2 column[S::kSquare ? 1 : S::kColumns / 8];

  __device__ void load(const float* scales, int b_row, int block) {
    if constexpr (S::kSquare) {
#pragma unroll
      for (int i = 0; i < S::kColumns / 64; ++i)
        square[i] = scales[(b_row % 128 + i * 64) / 128 * 4 + block % 4];
    } else {
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
  if constexpr (S::kSquare) {
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
  constexpr int kProducts = kBlockK / kProductK;
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

/// One tile's totals, by one warpgroup.
template <class S>
__device__ inline void accumulate(Shared<S>& shared, const Tile& tile, int warpgroup, int thread,
                                  Turn<S::kStages>& turn, float (&total)[S::kHalves][S::kSums]) {
#pragma unroll
  for (int half = 0; half < S::kHalves; ++half)
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) total[half][i] = 0;

  const int first_row = warpgroup * S::kHalves * 64;
  const float* a_scale = shared.a_scale[0] + first_row + thread / 32 * 16 + thread % 32 / 4;
  const std::uint64_t first_a = descriptor_of(shared.a[0] + first_row * kBlockK),
                      first_b = descriptor_of(shared.b[0]);
  for (int i = 0; i < tile.k_blocks; ++i, turn.next()) {
    const int stage = turn.stage;
    shared.full[stage].wait(turn.parity);
    const std::uint64_t a = below(first_a, stage * S::kRows), b = below(first_b, stage * S::kColumns);
    ColumnScales<S> scales;
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half) {
      float part[S::kSums];
      multiply_stage<S>(part, below(a, half * 64), b, warpgroup);
      const float a0 = a_scale[stage * S::kRows + half * 64], a1 = a_scale[stage * S::kRows + half * 64 + 8];
      if (half == 0) scales.load(shared.b_scale[stage], tile.b_row, tile.k_block + i);
      pass_turn<S>(warpgroup);
      await_products(part);
      promote<S>(total[half], part, a0, a1, scales);
    }
    __syncwarp();  // its lanes have read their scales
    if constexpr (S::kCluster == 1) {
      if (thread % 32 == 0) shared.empty[stage].arrive();
    } else {
      if (thread % 32 < S::kCluster) shared.empty[stage].arrive_at(thread % 32);
    }
  }
}

/// What is in D already is added in FP32, before the only rounding.
template <int kSums>
__device__ inline void add_bf16(float (&total)[kSums], const Before& before, int first_row, int first_column) {
  int thread;  // asked for again: kept since the start, it would cost the products a register that they need
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  thread %= kWarpgroup;
  const int lane = thread % 32;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int row = first_row + thread / 32 * 16 + lane / 4 + below * 8;
    if (row >= before.rows) continue;
    const __nv_bfloat16* from = before.data + static_cast<std::int64_t>(row) * before.columns;
#pragma unroll
    for (int group = 0; group < kSums / 4; ++group) {
      const int column = first_column + group * 8 + lane % 4 * 2;
      if (column >= before.columns) continue;
      const float2 old = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from + column));
      total[4 * group + 2 * below] += old.x;
      total[4 * group + 2 * below + 1] += old.y;
    }
  }
}

/// A warpgroup's totals to D, box after box. Its first thread asks for the copies and waits for those before.
template <class S>
__device__ inline void store(Shared<S>& shared, const Maps& maps, const Before& before, const Tile& tile,
                             int warpgroup, int thread, float (&total)[S::kHalves][S::kSums]) {
  constexpr int kBoxes = S::kColumns / S::kDColumns;
#pragma unroll
  for (int half = 0; half < S::kHalves; ++half) {
    const int row = tile.d_row + (warpgroup * S::kHalves + half) * 64;
    if constexpr (S::kStore == Store::bf16_add) add_bf16(total[half], before, row, tile.d_column);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      std::uint8_t* box = shared.d[warpgroup][(half * kBoxes + i) % S::kDBoxes];
      if (thread == 0) wait_until_read<S::kDBoxes - 1>();
      synchronize_some(1 + warpgroup, kWarpgroup);
      if constexpr (is_f32(S::kStore))
        write_f32_box<S::kDColumns>(box, total[half], i * S::kDColumns, thread);
      else
        write_bf16_box<S::kDColumns>(box, total[half], i * S::kDColumns, thread);
      publish_stores();
      synchronize_some(1 + warpgroup, kWarpgroup);
      if (thread == 0) {
        const int column = tile.d_column + i * S::kDColumns;
        if constexpr (S::kStore == Store::f32_add)
          add_box(&maps.d, row, column, box);
        else
          store_box(&maps.d, row, column, box);
        commit_stores();
      }
    }
  }
}

template <class S, class Order>
__global__ __launch_bounds__(kThreads, 1)
    __cluster_dims__(S::kCluster) void multiply_blockwise(const __grid_constant__ Maps maps,
                                                          const SquareScales squares, const Before before,
                                                          const Order order) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<S>*>(shared_bytes);
  const int rank = S::kCluster == 1 ? 0 : rank_in_cluster();
  const int cluster = static_cast<int>(blockIdx.x) / S::kCluster;
  const int clusters = static_cast<int>(gridDim.x) / S::kCluster;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(S::kCluster * kMathWarpgroups * 4);
    }
    publish_barriers();
  }
  if constexpr (S::kCluster == 1)
    __syncthreads();
  else
    synchronize_cluster();

  // Taken from lane 0, so that the compiler knows it to be the same in a warp.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  if (warpgroup < 0) {
    keep_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) produce<S>(shared, maps, squares, order, rank, cluster, clusters);
  } else {
    take_registers<S::kMathRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    Turn<S::kStages> turn;
    if (S::kTakeTurns && warpgroup == 1) arrive_at_some(kTurns, kMathWarpgroups * kWarpgroup);
    for (int index = cluster; index < order.count(); index += clusters) {
      const Tile tile = order.template at<S>(index, rank);
      float total[S::kHalves][S::kSums];
      accumulate<S>(shared, tile, warpgroup, thread, turn, total);
      store<S>(shared, maps, before, tile, warpgroup, thread, total);
    }
    if (S::kTakeTurns && warpgroup == 0) synchronize_some(kTurns, kMathWarpgroups * kWarpgroup);
    if (thread == 0) wait_until_read<0>();
  }
  // No block leaves while another may still write to its shared memory or arrive at its barriers.
  if constexpr (S::kCluster > 1) synchronize_cluster();
#endif
}

}  // namespace precbench::hopper
