// Shared by all RoPE kernels: pairs of vectors of 8 elements that rotate together, i..i+7 and i + D/2.. of
// one head, of rows [q heads | k heads | v heads]; and their rotation.
#pragma once

#include "kernels/cuda/quantize/produce.cuh"

namespace precbench::cuda {

/// cos and sin of eight consecutive pairs.
struct Angles {
  float cos[8], sin[8];

  __device__ Angles(const float* table) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float4 two = __ldg(reinterpret_cast<const float4*>(table) + q);
      cos[2 * q] = two.x, sin[2 * q] = two.y;
      cos[2 * q + 1] = two.z, sin[2 * q + 1] = two.w;
    }
  }
};

/// Work of a thread in a rotation kernel: one pair of vectors of one head of one row.
struct Pairs {
  std::int64_t count;  ///< in all rows
  int per_row;         ///< of the heads processed, D / 16 each
  int per_head;
  int rotated_heads;  ///< q and k; later heads are copied
  int q_heads;
  std::int64_t T, D, width;
  std::int64_t early_rows;  ///< later rows have the angles of the table's second half

  __device__ std::int64_t table_row(std::int64_t row) const { return row % T + (row < early_rows ? 0 : T); }
};

struct Pair {
  std::int64_t row;
  int head;
  std::int64_t i;   ///< of the first element inside the head
  std::int64_t at;  ///< of the first element in the matrix; its partner is D / 2 further

  __device__ Pair(const Pairs& pairs, std::int64_t index)
      : Pair(pairs, index / pairs.per_row, static_cast<int>(index % pairs.per_row)) {}
  __device__ Pair(const Pairs& pairs, std::int64_t row, int of_row) : row(row) {
    head = of_row / pairs.per_head;
    i = (of_row - head * pairs.per_head) * 8;
    at = row * pairs.width + head * pairs.D + i;
  }
};

/// Operations before the rotation.
struct NormAndBias {
  const std::uint16_t *q = nullptr, *k = nullptr;  // [D]; null: no QK-norm
  const std::uint16_t* bias = nullptr;             // [width]; null: none
  float eps = 0;
  float offset = 0;  // added to the gains
};

/// Rotates a and b, the two vectors of a pair, by their angles; kInverse: by the negative angles.
template <bool kInverse>
__device__ inline void apply_rope(float (&a)[8], float (&b)[8], const float* table, const Pair& pair,
                                  const Pairs& pairs) {
  const Angles angles(table + pairs.table_row(pair.row) * pairs.D + 2 * pair.i);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float x = a[j], cos = angles.cos[j], sin = angles.sin[j];
    a[j] = kInverse ? x * cos + b[j] * sin : x * cos - b[j] * sin;
    b[j] = kInverse ? b[j] * cos - x * sin : b[j] * cos + x * sin;
  }
}

}  // namespace precbench::cuda
