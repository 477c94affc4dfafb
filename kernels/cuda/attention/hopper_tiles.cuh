// Shared by the Hopper attention kernels: the order of tiles, GEMMs of 64 rows with a block of others, and
// the causal mask.
//
// A warpgroup's own 64 rows of a head, and the blocks of rows that it streams, are in shared memory as boxes of
// 64 columns side by side. There are two kinds of GEMM:
//
//   multiply_heads   own rows by a block's rows, summed over the head's width: q k^T, dout v^T and the same
//                    transposed
//   multiply_rows    the result of such a GEMM, rounded in registers, by a block's rows, summed over these:
//                    p v, ds k, p^T dout, ds^T q
#pragma once

#include <type_traits>

#include "kernels/cuda/hopper/pipeline.cuh"
#include "kernels/cuda/hopper/tma.cuh"
#include "kernels/cuda/hopper/wgmma_bf16.cuh"

namespace precbench::hopper {

constexpr int kRows = 64;                          ///< per warpgroup: M of an instruction
constexpr int kRowsBytes = kRows * kTileRowBytes;  ///< of a box of them

/// Returns x, opaque to the compiler: values that depend on it are recomputed here instead of kept in
/// registers.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Returns the tile of this block in a round. Tiles are numbered from the longest; every second round is
/// reversed, so that all `width` blocks have about equal work.
__device__ inline int tile_of_round(int round, int width = static_cast<int>(gridDim.x)) {
  const int mine = static_cast<int>(blockIdx.x);
  return round * width + (round % 2 == 0 ? mine : width - 1 - mine);
}

/// Work of the first warpgroup's other threads: none, unless a kernel overrides it.
template <class S, class Shared, class Problem>
__device__ inline void assist(Shared&, const Problem&) {}

/// Body of every kernel here: assigns roles to a block's threads, which have a Shared in dynamic shared memory. The first
/// warpgroup issues copies (produce, assist), the others compute (consume).
template <class S, class Shared, class Maps, class Problem>
__device__ inline void run_warpgroups(const Maps& maps, const Problem& problem) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  if (threadIdx.x == 0) {
    shared.init();
    fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = warpgroup_index() - 1;
  if (warpgroup < 0) {
    setmaxnreg_dec<S::kProducerRegisters>();
    if (threadIdx.x == 0)
      produce<S>(shared, maps, problem);
    else
      assist<S>(shared, problem);
  } else {
    setmaxnreg_inc<S::kMathRegisters>();
    consume<S>(shared, maps, problem, warpgroup);
  }
#endif
}

/// For one thread: initializes `count` buffers filled by one thread and released by `readers` arrivals.
__device__ inline void init_ring(Barrier* full, Barrier* empty, int count, int readers) {
  for (int i = 0; i < count; ++i) {
    full[i].init(1);
    empty[i].init(readers);
  }
}

/// sum[64, rows of b] = a b^T; a box of b has as many rows as sum has columns.
template <int kHead, int kCount>
__device__ inline void multiply_heads(float (&sum)[kCount], std::uint64_t a, std::uint64_t b) {
#pragma unroll
  for (int step = 0; step < kHead / kWgmmaKBf16; ++step) {
    constexpr int kSteps = kBoxColumns / kWgmmaKBf16;  // per box
    const std::uint64_t within = step % kSteps * kKMajorStep;
    wgmma_bf16(sum, a + within + step / kSteps * (kRowsBytes / 16),
               b + within + step / kSteps * (2 * kCount * kTileRowBytes / 16), step > 0);
  }
}

/// sum += p b; `b` is MN-major.
template <int kCount, int kWords>
__device__ inline void multiply_rows(float (&sum)[kCount], const std::uint32_t (&p)[kWords],
                                     std::uint64_t b) {
#pragma unroll
  for (int step = 0; step < kWords / 4; ++step) wgmma_bf16<true>(sum, p + 4 * step, b + step * kMnMajorStep);
}

/// Converts a GEMM's accumulators to the A operand of another.
template <int kCount>
__device__ inline void round_to_operand(std::uint32_t (&p)[kCount / 2], const float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = bf16_pair(x[2 * i], x[2 * i + 1]);
}

/// Writes a warpgroup's result into the boxes of its rows. Must be followed by fence_proxy_async(), a
/// barrier, and store_head by one thread.
template <int kBoxes, int kCount>
__device__ inline void write_head(std::uint8_t (&boxes)[kBoxes][kRowsBytes], const float (&x)[kCount],
                                  int thread) {
#pragma unroll
  for (int box = 0; box < kBoxes; ++box)
    write_bf16_box<kBoxColumns>(boxes[box], x, box * kBoxColumns, thread);
}

/// Returns the thread's row of the warpgroup's 64 in the first half of its accumulators; in the second it is
/// that + 8.
__device__ inline int row_of(int thread) { return thread / 32 * 16 + thread % 32 / 4; }

/// Sets to `value` the elements of one of the thread's two rows (`half`) for whose columns hidden(column) is true; column 0 is the
/// thread's first.
template <int kCount, class Hidden>
__device__ inline void set_columns(float (&x)[kCount], int half, float value, Hidden&& hidden) {
#pragma unroll
  for (int g = 0; g < kCount / 4; ++g)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (hidden(8 * g + i)) x[4 * g + 2 * half + i] = value;
}

/// Rows are queries, columns keys: sets the elements of keys that a query does not see. `first_seen` is the
/// last key that the first of the 64 rows sees, `last_key` the last existing key.
template <int kCount>
__device__ inline void mask_keys(float (&x)[kCount], int first_seen, int last_key, int first_key, int thread,
                                 float value) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int last = min(first_seen + row_of(thread) + 8 * half, last_key) - first_key - thread % 4 * 2;
    set_columns(x, half, value, [=](int column) { return column > last; });
  }
}

/// Sets the elements of keys before a row's window. `first_seen` is the first key in the window of the first of the 64 rows.
template <int kCount>
__device__ inline void mask_keys_before(float (&x)[kCount], int first_seen, int first_key, int thread,
                                        float value) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = first_seen + row_of(thread) + 8 * half - first_key - thread % 4 * 2;
    set_columns(x, half, value, [=](int column) { return column < first; });
  }
}

/// Returns the first block of keys that the window of a tile's first query reaches. Only kernels of soft-capped scores have
/// windows: cuDNN has them for others.
template <class S, class Problem>
__device__ inline auto first_key_block(const Problem& problem, int first_query, int block_keys) {
  if constexpr (S::kCapped)
    return max(first_query + problem.offset - problem.window + 1, 0) / block_keys;
  else
    return std::integral_constant<int, 0>();
}

/// Arrives for a warp.
__device__ inline void release(Barrier& empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) empty.arrive();
}

/// For one thread: loads `boxes` side by side of a head's rows; `full` must expect them.
template <int kBoxes, int kBytes>
__device__ inline void load_head(std::uint8_t (&boxes)[kBoxes][kBytes], const CUtensorMap& map, int sequence,
                                 int row, int column, Barrier& full) {
#pragma unroll
  for (int box = 0; box < kBoxes; ++box)
    tma_load_3d(boxes[box], &map, sequence, row, column + box * kBoxColumns, full);
}

template <int kBoxes>
__device__ inline void store_head(const CUtensorMap& map, int sequence, int row, int column,
                                  const std::uint8_t (&boxes)[kBoxes][kRowsBytes]) {
#pragma unroll
  for (int box = 0; box < kBoxes; ++box)
    tma_store_3d(&map, sequence, row, column + box * kBoxColumns, boxes[box]);
}

}  // namespace precbench::hopper
