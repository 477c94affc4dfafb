// Helpers shared by the Hopper kernels' pipelines: the position in a ring of buffers, and the epilogue's path
// from registers into a TMA box in shared memory.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/hopper/wgmma.cuh"

namespace precbench::hopper {

constexpr int kWarpgroup = 128;  ///< threads

/// Position in the ring: stage index and phase parity.
template <int kStages>
struct PipelineState {
  int stage = 0;
  unsigned parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Initializes a ring's barriers, with `readers` arrivals per empty barrier, and synchronizes the cluster's
/// blocks.
template <int kCluster, int kStages>
__device__ inline void init_pipeline(Barrier (&full)[kStages], Barrier (&empty)[kStages], int readers) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(readers);
    }
    fence_mbarrier_init();
  }
  if constexpr (kCluster == 1)
    __syncthreads();
  else
    cluster_sync();
}

/// Releases a stage for one warp, to every block of the cluster.
template <int kCluster>
__device__ inline void release_stage(Barrier& empty, int thread) {
  if constexpr (kCluster == 1) {
    if (thread % 32 == 0) empty.arrive();
  } else {
    if (thread % 32 < kCluster) empty.arrive_cluster(thread % 32);
  }
}

/// Returns the warpgroup index in the block. Read from lane 0, so that the compiler knows it to be uniform in
/// a warp.
__device__ inline int warpgroup_index() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

/// Packs two BF16 numbers in a word, `low` first in memory.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

/// Writes one box of D, 64 rows of 128 bytes, into shared memory in TMA's swizzled order: BF16 by stmatrix,
/// one 16x16 square per warp at a time.
template <int kColumns, int kSums>
__device__ inline void write_bf16_box(std::uint8_t* box, const float (&total)[kSums], int first_column,
                                      int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int square = 0; square < kColumns / 16; ++square) {
    const int at = 4 * (first_column / 8 + square * 2);
    const int piece = (square * 2 + lane / 16) ^ (row % 8);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(box + row * kTileRowBytes + piece * 16)),
                 "r"(bf16_pair(total[at], total[at + 1])), "r"(bf16_pair(total[at + 2], total[at + 3])),
                 "r"(bf16_pair(total[at + 4], total[at + 5])), "r"(bf16_pair(total[at + 6], total[at + 7]))
                 : "memory");
  }
}

template <int kColumns, int kSums>
__device__ inline void write_f32_box(std::uint8_t* box, const float (&total)[kSums], int first_column,
                                     int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int group = 0; group < kColumns / 8; ++group) {
    const int at = 4 * (first_column / 8 + group);
    const int piece = (group * 2 + lane % 4 / 2) ^ (row % 8);  // same for row + 8
    std::uint8_t* to = box + row * kTileRowBytes + piece * 16 + lane % 2 * 8;
    *reinterpret_cast<float2*>(to) = make_float2(total[at], total[at + 1]);
    *reinterpret_cast<float2*>(to + 8 * kTileRowBytes) = make_float2(total[at + 2], total[at + 3]);
  }
}

}  // namespace precbench::hopper
