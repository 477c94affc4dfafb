// Preparation of a matrix for FP4: converts it to the copy's order, applies the format's Hadamard transform
// in BF16, and computes its amax.
#pragma once

#include <algorithm>

#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/hadamard.cuh"

namespace precbench::cuda {

inline constexpr int kFp4Threads = 256;
inline constexpr int kFp4TileRows = 64, kFp4TileK = 128;
inline constexpr int kFp4TileChunks = kFp4TileK / kChunk;
inline constexpr int kFp4BlocksPerSm = 4;
// Pitch of a tile's row in shared memory, in BF16: an odd number of words, so that columns spread over the
// banks.
inline constexpr int kFp4TilePitch = kFp4TileK + 2;

struct PrepareArgs {
  const std::uint16_t* value;
  std::uint16_t* out;    // [rows, k]; null: compute only the amax
  std::uint32_t* parts;  // maxima of the grid's blocks, FP32 bits; null: not requested
  std::int64_t rows, k;  // of the copy
  Transform transform;
  const std::uint32_t* word;  // for random signs; null: 0
  std::uint32_t sign_stream;
};

/// Transposes a tile in shared memory: 64 columns of the value, 128 rows. A thread takes two rows at a time,
/// which are adjacent in the copy, and a warp 32 columns of 16 rows, whose words are in different banks.
__device__ inline void transform_tile(std::uint16_t (&tile)[kFp4TileRows][kFp4TilePitch],
                                      const PrepareArgs& a, std::int64_t row0, std::int64_t k0) {
  constexpr int kVectors = 4, kPairs = kFp4TileK / 2;
  Bf16x8 rows[2][2] = {};
  const int pair = static_cast<int>(threadIdx.x) / kVectors % kPairs;
  const int first = static_cast<int>(threadIdx.x) % kVectors * 8;
  const std::int64_t k = k0 + 2 * pair;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const std::int64_t row = row0 + first + n * kVectors * 8;
    if (k >= a.k || row >= a.rows) continue;
    rows[n][0] = load_vector(a.value + k * a.rows + row);
    rows[n][1] = load_vector(a.value + (k + 1) * a.rows + row);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<std::uint32_t*>(&tile[first + n * kVectors * 8 + j][2 * pair]) =
          __byte_perm(rows[n][0].pair[j / 2], rows[n][1].pair[j / 2], j % 2 ? 0x7632 : 0x5410);
}

/// A persistent grid over tiles of the copy. rows and k are multiples of 16 with kColumns, else only k is.
/// kLength: the transform's; 0: none.
template <bool kColumns, int kLength>
__global__ void __launch_bounds__(kFp4Threads, kFp4BlocksPerSm)
    prepare_kernel(const PrepareArgs a, int k_tiles, int tiles) {
  wait_for_work_before();
  constexpr int kRuns = kFp4TileRows * kFp4TileChunks / kFp4Threads;
  __shared__ alignas(16) std::uint16_t tile[kColumns ? kFp4TileRows : 1][kFp4TilePitch];
  __shared__ std::uint32_t buffer[kWarp];
  __shared__ SignBits signs;
  leave_signs(signs, a.transform.signs, a.word, a.sign_stream);
  const int c = static_cast<int>(threadIdx.x) % kFp4TileChunks * kChunk;
  const ChunkSigns chunk_of_signs(kLength ? chunk_signs(signs, kLength, c) : 0);
  std::uint32_t largest = 0;
  for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t row0 = static_cast<std::int64_t>(t / k_tiles) * kFp4TileRows;
    const std::int64_t k0 = static_cast<std::int64_t>(t % k_tiles) * kFp4TileK;
    if constexpr (kColumns) {
      __syncthreads();  // the previous tile has been read
      transform_tile(tile, a, row0, k0);
      __syncthreads();
    }
    Chunk x[kRuns] = {};
    const auto row = [](int n) {
      return static_cast<int>(threadIdx.x) / kFp4TileChunks + n * kFp4Threads / kFp4TileChunks;
    };
    const auto inside = [&](int n) { return row0 + row(n) < a.rows && k0 + c < a.k; };
    const auto at = [&](int n) { return (row0 + row(n)) * a.k + k0 + c; };
#pragma unroll
    for (int n = 0; n < kRuns; ++n) {
      if (!inside(n)) continue;
      if constexpr (kColumns) {
        const auto* words = reinterpret_cast<const std::uint32_t*>(&tile[row(n)][c]);
#pragma unroll
        for (int p = 0; p < kChunk / 2; ++p) x[n].half[p / 4].pair[p % 4] = words[p];
      } else {
        x[n] = load_chunk(a.value + at(n));
      }
    }
#pragma unroll
    for (int n = 0; n < kRuns; ++n) {
      // Whole warps reach this point, for the transform's exchange between lanes; elements outside are 0 and
      // stay 0.
      if constexpr (kLength > 0) transform(x[n], kLength, chunk_of_signs, c);
      largest = max(largest, max_of(x[n]));
      if (!inside(n) || !a.out) continue;
      store_vector(a.out + at(n), x[n].half[0]);
      store_vector(a.out + at(n) + 8, x[n].half[1]);
    }
  }
  if (!a.parts) return;
  largest = block_max(largest, buffer);
  if (threadIdx.x == 0) a.parts[blockIdx.x] = largest << 16;
}

}  // namespace precbench::cuda
