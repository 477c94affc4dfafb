// Shared by the router's forward and backward: one warp per token, its logits in shared memory, and its k-th
// slot in lane k.
#pragma once

#include <cfloat>

#include "kernels/cuda/vector.cuh"
#include "kernels/device/operands.h"
#include "kernels/numerics/routing_rule.h"

namespace precbench::cuda {

inline constexpr int kRouterWarps = 8;  ///< per block, one token each
inline constexpr int kRouterThreads = kRouterWarps * kWarp;
inline constexpr std::int64_t kMostExperts = 256;  ///< limit of a block's shared memory
inline constexpr float kLeastSum = 1e-20f;         ///< added to a divisor that is a sum of sigmoids

/// Throws Unsupported for more experts, slots or groups of experts than the kernels support.
void check_rule(const RoutingRule& rule);

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

/// Returns the sum of `value` over earlier threads, and in `all` the total; every thread of the block must
/// call it.
__device__ inline int sum_before(int value, int& all, std::int32_t* buffer /* [32] */) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) buffer[warp] = sum;
  __syncthreads();
  int before = 0;
  all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    if (w < warp) before += buffer[w];
    all += buffer[w];
  }
  __syncthreads();
  return before + sum - value;
}

/// Terms of one token's probabilities.
struct TokenScores {
  float largest, total;  ///< of the logits, and the sum of e^(z - largest)
  float sum = 1;         ///< of all p: the divisor that normalizes them to shares
  bool finite;           ///< all logits are
  bool softmax;

  __device__ float probability(float z) const {
    return softmax ? expf(z - largest) / total : 1.0f / (1.0f + expf(-z));
  }
  __device__ float logsumexp() const { return largest + logf(total); }
};

/// Every lane of the warp must call it. for_each(body) calls body with the logits of the lane's experts:
/// lane, lane + 32, ...
template <class ForEach>
__device__ inline TokenScores token_scores_of(const RoutingRule& rule, ForEach&& for_each) {
  TokenScores scores;
  scores.softmax = rule.score == RouterScore::softmax;
  float largest = -FLT_MAX;
  bool finite = true;
  for_each([&](float z) {
    largest = fmaxf(largest, z);
    finite = finite && isfinite(z);
  });
  scores.largest = warp_max(largest);
  scores.finite = __all_sync(kAllLanes, finite);
  float total = 0, sum = 0;
  for_each([&](float z) {
    total += expf(z - scores.largest);
    if (!scores.softmax) sum += scores.probability(z);
  });
  scores.total = warp_sum(total);
  if (!scores.softmax) scores.sum = warp_sum(sum);
  return scores;
}

/// The same with z [experts] in shared memory.
__device__ inline TokenScores token_scores(const RoutingRule& rule, const float* z) {
  return token_scores_of(rule, [&](auto&& body) {
    for (int e = threadIdx.x % kWarp; e < static_cast<int>(rule.experts); e += kWarp) body(z[e]);
  });
}

/// Returns g of each lane's expert: p, or its share of the chosen ones' sum. `sum` is set to the divisor
/// (else 1). Lanes without a slot get 0.
__device__ inline float gate_of(const RoutingRule& rule, const TokenScores& scores, float z, bool chosen,
                                float& sum) {
  sum = 1;
  if (!rule.normalise) return chosen ? scores.probability(z) : 0.0f;
  float g;
  if (scores.softmax) {  // a softmax over the chosen logits: nothing underflows
    const float largest = warp_max(chosen ? z : -FLT_MAX);
    g = chosen ? expf(z - largest) : 0.0f;
    sum = warp_sum(g);
  } else {
    g = chosen ? scores.probability(z) : 0.0f;
    sum = warp_sum(g) + kLeastSum;
  }
  return g / sum;
}

}  // namespace precbench::cuda
