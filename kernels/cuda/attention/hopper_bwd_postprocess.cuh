// Kernels before and after the Hopper attention backward: each query's row values, and the final sums.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/attention/hopper_backward.h"
#include "kernels/cuda/attention/hopper_tiles.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::hopper {

constexpr int kPreprocessThreads = 256, kPostprocessThreads = kWarpgroup;

/// Computes `values`: lse for powers of two, infinite for a query that sees no key and beyond the last, and
/// delta, the row sum of dout * out. Also clears its part of dq_sums, if present. A thread has eight columns
/// of a query of a head.
template <int kHead>
__global__ void bwd_preprocess(float* values, float* dq_sums, const float* lse, const __nv_bfloat16* dout,
                               const __nv_bfloat16* out, int queries, int padded, int heads,
                               std::int64_t count) {
  wait_for_work_before();
  constexpr int kLanes = kHead / 8;
  const std::int64_t item =
      (static_cast<std::int64_t>(blockIdx.x) * kPreprocessThreads + threadIdx.x) / kLanes;
  if (item >= count) return;  // uniform per warp: the padded queries are a multiple of its lanes
  const int head = static_cast<int>(item % heads), lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t sequence = item / heads / padded;
  const int query = static_cast<int>(item / heads % padded);
  float delta = 0, shift = INFINITY;
  if (query < queries) {
    const std::int64_t at = ((sequence * queries + query) * heads + head) * kHead + 8 * lane;
    const uint4 x = *reinterpret_cast<const uint4*>(dout + at), y = *reinterpret_cast<const uint4*>(out + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 of_x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&x)[i]);
      const float2 of_y = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&y)[i]);
      delta += of_x.x * of_y.x + of_x.y * of_y.y;
    }
    const float of_row = lse[(sequence * heads + head) * queries + query];
    if (of_row != -INFINITY) shift = of_row * 1.4426950408889634f;
  }
  for (int step = kLanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(~0u, delta, step);
  if (lane == 0) {
    float* to = values + (sequence * heads + head) * 2 * padded + row_value_index(query);
    to[0] = shift;
    to[64] = delta;
  }
  if (!dq_sums) return;
  auto* sums = reinterpret_cast<float4*>(dq_sums + ((sequence * heads + head) * padded + query) * kHead);
  sums[lane] = sums[kLanes + lane] = {0, 0, 0, 0};
}

/// Destinations of finish(). Rows of queries and of keys are a pitch apart.
struct Results {
  __nv_bfloat16 *dq, *dk, *dv;
  std::int64_t query_pitch, key_pitch;
  std::int64_t key_rows;
  int key_width;
  int shares;  ///< shares of dq_sums of all sequences; one block each
};

/// dq = scale times the sums, for one share: 64 queries, kColumns columns of a head.
template <int kHead, int kColumns>
__device__ inline void postprocess_dq(const Results& to, const BackwardProblem& problem, int share,
                                      int thread) {
  constexpr int kShares = kHead / kColumns;
  const int block = share / kShares % problem.of_head, of_all = share / (kShares * problem.of_head);
  const int head = of_all % problem.heads, sequence = of_all / problem.heads;
  const auto* from = reinterpret_cast<const float4*>(problem.dq_sums) +
                     static_cast<std::int64_t>(share) * (kColumns * 16) + thread;
  float4 sums[kColumns / 8];
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) sums[i] = from[i * kPostprocessThreads];
  const int row = block * 64 + row_of(thread), odd = thread % 2;
  __nv_bfloat16* dq = to.dq + (static_cast<std::int64_t>(sequence) * problem.queries + row) * to.query_pitch +
                      head * kHead + share % kShares * kColumns + thread % 4 / 2 * 4;
  // Two adjacent threads have adjacent columns: one writes four of a group of eight, the other four of the
  // next.
#pragma unroll
  for (int i = 0; i < kColumns / 8; i += 2)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto words = [&](const float4& x) {
        return half == 0 ? bf16_pair(x.x * problem.scale, x.y * problem.scale)
                         : bf16_pair(x.z * problem.scale, x.w * problem.scale);
      };
      const std::uint32_t even_group = words(sums[i]), odd_group = words(sums[i + 1]);
      const std::uint32_t given = __shfl_xor_sync(~0u, odd ? even_group : odd_group, 1);
      if (row + 8 * half < problem.queries)
        *reinterpret_cast<uint2*>(dq + 8 * half * to.query_pitch + 8 * (i + odd)) =
            odd ? make_uint2(given, odd_group) : make_uint2(even_group, given);
    }
}

/// Writes four elements, from `at` on, of dk followed by dv: the sum of the parts' pieces, in order.
__device__ inline void sum_pieces(const Results& to, const BackwardProblem& problem, std::int64_t at) {
  const std::int64_t count = to.key_rows * to.key_width;
  if (at >= 2 * count) return;
  const float* from = problem.pieces + at;
  float4 sum = *reinterpret_cast<const float4*>(from);
  for (int part = 1; part < problem.parts; ++part) {
    const float4 more = *reinterpret_cast<const float4*>(from + part * 2 * count);
    sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
  }
  const std::int64_t within = at % count;
  __nv_bfloat16* place =
      (at < count ? to.dk : to.dv) + within / to.key_width * to.key_pitch + within % to.key_width;
  *reinterpret_cast<uint2*>(place) = {bf16_pair(sum.x, sum.y), bf16_pair(sum.z, sum.w)};
}

/// One block per share of dq, followed by blocks that sum the parts of dk and dv, if there are several.
template <int kHead, int kColumns>
__global__ void bwd_postprocess(const Results to, const BackwardProblem problem) {
  wait_for_work_before();
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if (block < to.shares)
    postprocess_dq<kHead, kColumns>(to, problem, block, thread);
  else
    sum_pieces(to, problem,
               4 * (static_cast<std::int64_t>(block - to.shares) * kPostprocessThreads + thread));
}

}  // namespace precbench::hopper
