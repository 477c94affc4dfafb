// RoPE after a norm over all query heads and all key heads (OLMoE), forward and backward.
//
// Such a norm needs the whole row. A block processes one row at a time, q's pairs in its first warps and k's
// in the next; each thread has the same pair of every row, with its gains in registers. A row's sums are
// reduced over its warps in order. Backward adds up the gains' gradients of a block's rows in shared memory.
// Bytes per element: 2 read and 2 written, backward 4 read; v only if not in place.
#pragma once

#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/layers/rope_pairs.cuh"

namespace precbench::cuda {

/// Enough for up to 8,192 elements of q and k; with more threads each has too few registers.
constexpr int kFewThreads = 512;

/// A thread's part of every row that its block processes: a pair of q, or one of k.
struct PartOfRow {
  bool is_q, there;
  int of_row;             ///< index of its pair in the row
  int first_warp, warps;  ///< of the threads that have q, or k
  float width;            ///< of q, or k

  __device__ explicit PartOfRow(const Pairs& pairs) {
    const int q = pairs.q_heads * pairs.per_head, k = pairs.rotated_heads * pairs.per_head - q;
    const int q_warps = (q + kWarp - 1) / kWarp;
    is_q = threadIdx.x < q_warps * kWarp;
    const int place = static_cast<int>(threadIdx.x) - (is_q ? 0 : q_warps * kWarp), count = is_q ? q : k;
    there = place < count;
    of_row = (is_q ? 0 : q) + (there ? place : 0);
    first_warp = is_q ? 0 : q_warps;
    warps = (count + kWarp - 1) / kWarp;
    width = static_cast<float>(count * kPairOfVectors);
  }

  /// Sums over q, or over k. One barrier; `sums` may be reused after the next one.
  template <int kCount>
  __device__ void add_up(float (&x)[kCount], float (&sums)[kCount][kWarp]) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      x[n] = warp_sum(x[n]);
      if (threadIdx.x % kWarp == 0) sums[n][threadIdx.x / kWarp] = x[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      x[n] = 0;
      for (int w = first_warp; w < first_warp + warps; ++w) x[n] += sums[n][w];
    }
  }
};

/// Gains of a thread's pair.
struct PairGains {
  Bf16x8 first = {}, second = {};

  __device__ PairGains(const NormAndBias& before, const PartOfRow& part, const Pairs& pairs) {
    const Pair pair(pairs, 0, part.of_row);
    const std::uint16_t* gain = part.is_q ? before.q + pair.at : before.k + pair.at - pairs.q_heads * pairs.D;
    first = load_vector(gain);
    second = load_vector(gain + pairs.D / 2);
  }
};

/// Copies v of a row unless it is in place.
__device__ inline void copy_v(std::uint16_t* out, const std::uint16_t* in, const Pairs& pairs,
                              std::int64_t row) {
  if (out == in) return;
  for (std::int64_t col = pairs.rotated_heads * pairs.D + threadIdx.x * 8; col < pairs.width;
       col += blockDim.x * 8)
    store_vector(out + row * pairs.width + col, load_vector(in + row * pairs.width + col));
}

template <int kMost>
__global__ void __launch_bounds__(kMost)
    rope_over_heads_kernel(std::uint16_t* out, const std::uint16_t* qkv, const float* table,
                           const Pairs pairs, const NormAndBias before, std::int64_t rows) {
  wait_for_work_before();
  __shared__ float sums[2][1][kWarp];
  const PartOfRow part(pairs);
  const PairGains gains(before, part, pairs);
  int phase = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, phase ^= 1) {
    const Pair pair(pairs, row, part.of_row);
    float a[8] = {}, b[8] = {}, squares[1] = {};
    if (part.there) {
      load_vector(a, qkv + pair.at);
      load_vector(b, qkv + pair.at + pairs.D / 2);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares[0] += a[j] * a[j] + b[j] * b[j];
    part.add_up(squares, sums[phase]);
    const float rstd = 1.0f / sqrtf(squares[0] / part.width + before.eps);
    if (part.there) {
      float w[8], v[8];
      unpack(w, gains.first);
      unpack(v, gains.second);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        a[j] *= rstd * (w[j] + before.offset), b[j] *= rstd * (v[j] + before.offset);
      apply_rope<false>(a, b, table, pair, pairs);
      store_vector(out + pair.at, a);
      store_vector(out + pair.at + pairs.D / 2, b);
    }
    copy_v(out, qkv, pairs, row);
  }
}

__device__ inline float element(const Bf16x8& v, int i) {
  return i % 2 ? high(v.pair[i / 2]) : low(v.pair[i / 2]);
}

/// Turns d, the gradient of eight normed elements x times their gains, into that of x; adds the gains'
/// gradients to dgain[0] and dgain[blockDim.x].
__device__ inline void norm_backward(float (&d)[8], const Bf16x8& x, const Bf16x8& gains, float offset,
                                     float rstd, float mean, float4* dgain) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float4& shared = dgain[half * blockDim.x];
    float4 total = shared;
    float* const totals[4] = {&total.x, &total.y, &total.z, &total.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = half * 4 + e;
      const float normed = element(x, j) * rstd;
      *totals[e] += d[j] * normed;
      d[j] = rstd * (d[j] * (element(gains, j) + offset) - normed * mean);
    }
    shared = total;
  }
}

/// partial: [blocks, q's and k's width], the gains' gradients over a block's rows. They are summed in shared
/// memory, each thread's own: they do not fit in registers.
template <int kMost>
__global__ void __launch_bounds__(kMost)
    rope_over_heads_backward_kernel(std::uint16_t* dqkv, float* partial, const std::uint16_t* dout,
                                    const std::uint16_t* qkv, const float* table, const Pairs pairs,
                                    const NormAndBias before, std::int64_t rows) {
  wait_for_work_before();
  __shared__ float reduced[2][2][kWarp];
  extern __shared__ float4 shared[];  // [4][threads] of 4 elements
  float4* dgain = shared + threadIdx.x;
  const PartOfRow part(pairs);
  PairGains gains(before, part, pairs);
#pragma unroll
  for (int n = 0; n < 4; ++n) dgain[n * blockDim.x] = make_float4(0, 0, 0, 0);
  int phase = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, phase ^= 1) {
    const Pair pair(pairs, row, part.of_row);
    Bf16x8 x = {}, y = {};
    float a[8] = {}, b[8] = {};
    if (part.there) {
      x = load_vector(qkv + pair.at);
      y = load_vector(qkv + pair.at + pairs.D / 2);
      load_vector(a, dout + pair.at);
      load_vector(b, dout + pair.at + pairs.D / 2);
      apply_rope<true>(a, b, table, pair, pairs);
    }
    float sums[2] = {};  // of squares; of the gradient times the normed elements
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float xj = element(x, j), yj = element(y, j);
      sums[0] += xj * xj + yj * yj;
      sums[1] += a[j] * (element(gains.first, j) + before.offset) * xj +
                 b[j] * (element(gains.second, j) + before.offset) * yj;
    }
    part.add_up(sums, reduced[phase]);
    const float rstd = 1.0f / sqrtf(sums[0] / part.width + before.eps);
    const float mean = sums[1] * rstd / part.width;
    stay_packed(x), stay_packed(y), stay_packed(gains.first), stay_packed(gains.second);
    if (part.there) {
      norm_backward(a, x, gains.first, before.offset, rstd, mean, dgain);
      store_vector(dqkv + pair.at, a);
      norm_backward(b, y, gains.second, before.offset, rstd, mean, dgain + 2 * blockDim.x);
      store_vector(dqkv + pair.at + pairs.D / 2, b);
    }
    copy_v(dqkv, dout, pairs, row);
  }
  if (!part.there) return;
  const Pair pair(pairs, 0, part.of_row);
  float* to = partial + blockIdx.x * pairs.rotated_heads * pairs.D + pair.at;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    *reinterpret_cast<float4*>(to + n / 2 * (pairs.D / 2) + n % 2 * 4) = dgain[n * blockDim.x];
}

}  // namespace precbench::cuda
