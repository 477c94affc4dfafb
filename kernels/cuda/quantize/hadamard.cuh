// Sixteen BF16 per thread, and Hadamard transforms over them and adjacent threads.
#pragma once

#include "kernels/cuda/vector.cuh"
#include "kernels/numerics/fp4.h"

namespace precbench::cuda {

inline constexpr int kChunk = 16;  ///< elements per thread

/// Sixteen consecutive BF16.
struct Chunk {
  Bf16x8 half[2];
};

__device__ inline Chunk load_chunk(const std::uint16_t* p) { return {{load_vector(p), load_vector(p + 8)}}; }

/// Returns the largest magnitude, as BF16 bits.
__device__ inline std::uint32_t max_of(const Chunk& x) {
  return max_half(max_of_pairs(max_of_pairs(x.half[0]), max_of_pairs(x.half[1])));
}

__device__ inline void unpack(float* out, const Chunk& x) {
#pragma unroll
  for (int i = 0; i < kChunk; i += 2) {
    out[i] = low(x.half[i / 8].pair[i / 2 % 4]);
    out[i + 1] = high(x.half[i / 8].pair[i / 2 % 4]);
  }
}

/// Computes the signs of a launch's transforms, once per block. Every thread must call it; one barrier.
__device__ inline void leave_signs(SignBits& signs, Signs kind, const std::uint32_t* word,
                                   std::uint32_t stream) {
  if (threadIdx.x == 0) signs = sign_bits(kind, word ? *word : 0, stream);
  __syncthreads();
}

/// hadamard_sums of `length` elements, one chunk in each of length / 16 adjacent lanes; same order of
/// additions. `place`: position of the chunk's first element in its row. Every lane of the warp must call it.
__device__ inline void hadamard_sums(float (&x)[kChunk], int length, int place) {
#pragma unroll
  for (int half = 1; half < kChunk; half *= 2)
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i & half) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
#pragma unroll
  for (int half = kChunk; half < length; half *= 2) {
    const float sign = place & half ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      x[i] = __fmaf_rn(x[i], sign, __shfl_xor_sync(kAllLanes, x[i], half / kChunk));
  }
}

/// Returns the signs of a chunk, one bit each.
__device__ inline std::uint32_t chunk_signs(const SignBits& signs, int length, int place) {
  const int first = place % length;
  return signs.words[first / 32] >> (first % 32);
}

/// The same signs at their bit positions in a chunk.
struct ChunkSigns {
  std::uint32_t of_pair[kChunk / 2];

  __device__ explicit ChunkSigns(std::uint32_t minus) {
#pragma unroll
    for (int p = 0; p < kChunk / 2; ++p)
      of_pair[p] = (minus >> (2 * p) & 1u) << 15 | (minus >> (2 * p + 1) & 1u) << 31;
  }
};

/// hadamard_transform, distributed in the same way.
__device__ inline void transform(Chunk& chunk, int length, const ChunkSigns& signs, int place) {
#pragma unroll
  for (int p = 0; p < kChunk / 2; ++p) chunk.half[p / 4].pair[p % 4] ^= signs.of_pair[p];
  float x[kChunk];
  unpack(x, chunk);
  hadamard_sums(x, length, place);
  const float factor = hadamard_factor(length);
#pragma unroll
  for (int p = 0; p < kChunk / 2; ++p)
    chunk.half[p / 4].pair[p % 4] = pack(x[2 * p] * factor, x[2 * p + 1] * factor);
}

}  // namespace precbench::cuda
