// What the pipelines of Hopper's kernels have in common: a place in a ring of buffers, and a product's way from registers
// into a box of shared memory from which the copy engine takes it.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/hopper/wgmma.cuh"

namespace precbench::hopper {

constexpr int kWarpgroup = 128;  ///< threads

/// A position in the ring.
template <int kStages>
struct Turn {
  int stage = 0;
  unsigned parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Sets up a ring's barriers, which expect `readers` arrivals to be empty, and waits until all of the cluster's blocks have.
template <int kCluster, int kStages>
__device__ inline void begin_ring(Barrier (&full)[kStages], Barrier (&empty)[kStages], int readers) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(readers);
    }
    publish_barriers();
  }
  if constexpr (kCluster == 1)
    __syncthreads();
  else
    synchronize_cluster();
}

/// A warp gives a stage back, to every block of the cluster.
template <int kCluster>
__device__ inline void give_back(Barrier& empty, int thread) {
  if constexpr (kCluster == 1) {
    if (thread % 32 == 0) empty.arrive();
  } else {
    if (thread % 32 < kCluster) empty.arrive_at(thread % 32);
  }
}

/// Of the block. Taken from lane 0, so that the compiler knows it to be the same in a warp.
__device__ inline int this_warpgroup() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

/// Two BF16 numbers in a word, `low` first in memory.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

/// One box of D, 64 rows of 128 bytes, into shared memory in TMA's swizzled order: BF16 by stmatrix, a 16x16 square of
/// a warp at a time.
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
    const int piece = (group * 2 + lane % 4 / 2) ^ (row % 8);  // of row + 8 too
    std::uint8_t* to = box + row * kTileRowBytes + piece * 16 + lane % 2 * 8;
    *reinterpret_cast<float2*>(to) = make_float2(total[at], total[at + 1]);
    *reinterpret_cast<float2*>(to + 8 * kTileRowBytes) = make_float2(total[at + 2], total[at + 3]);
  }
}

}  // namespace precbench::hopper
