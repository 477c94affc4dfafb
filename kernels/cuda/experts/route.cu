// The router: logits by cuBLASLt, then a warp for each token, whose lanes share its experts. Sums over tokens are made in
// the order of warps and blocks, in a second kernel, so that equal inputs give equal bits.
#include <algorithm>
#include <climits>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/gemm/matmul_plans.h"

namespace precbench {
namespace cuda {

void check_rule(const RoutingRule& rule) {
  if (rule.experts > kMostExperts || rule.top_k > kWarp || rule.groups > kWarp)
    throw Unsupported("the CUDA device routes among up to " + std::to_string(kMostExperts) +
                      " experts, to up to 32 each, in up to 32 groups, not among " +
                      std::to_string(rule.experts) + " to " + std::to_string(rule.top_k) + " in " +
                      std::to_string(rule.groups));
}

namespace {

constexpr int kBlocksPerSm = 2;
constexpr int kFinishThreads = kWarp * kWarp;

/// Order of floats as that of integers above 0, equal zeros; NaN below all. 0 is what has been taken.
__device__ inline std::uint32_t ordered(float x) {
  if (isnan(x)) return 1;
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

__device__ inline float from_ordered(std::uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xFFFFFFFFu));
}

/// The place of the largest of the warp's keys, the first of equal ones; a lane offers its own best.
__device__ inline int place_of_largest(std::uint32_t key, int place) {
  const std::uint32_t most = __reduce_max_sync(kAllLanes, key);
  return __reduce_min_sync(kAllLanes, key == most ? place : INT_MAX);
}

/// Takes the experts outside the best groups out of the choice; a lane has a group.
__device__ inline void leave_out_groups(const RoutingRule& rule, std::uint32_t* keys) {
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(rule.experts);
  const int groups = static_cast<int>(rule.groups), size = experts / groups;
  float first = -INFINITY, second = -INFINITY;
  for (int e = lane * size; lane < groups && e < (lane + 1) * size; ++e) {
    const float key = from_ordered(keys[e]);
    second = fmaxf(second, fminf(first, key));
    first = fmaxf(first, key);
  }
  std::uint32_t score =
      lane < groups ? ordered(rule.group_score == GroupScore::max ? first : first + second) : 0;
  std::uint32_t kept = 0;
  for (int i = 0; i < rule.group_top_k; ++i) {
    const int best = place_of_largest(score, lane);
    kept |= 1u << best;
    if (best == lane) score = 0;
  }
  for (int e = lane; e < experts; e += kWarp)
    if (!(kept >> (e / size) & 1u)) keys[e] = ordered(-INFINITY);
  __syncwarp();
}

/// Lane k's expert: the k-th largest key.
__device__ inline int choose_experts(const RoutingRule& rule, std::uint32_t* keys) {
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(rule.experts);
  int chosen = 0;
  for (int k = 0; k < rule.top_k; ++k) {
    std::uint32_t most = 0;
    int place = INT_MAX;
    for (int e = lane; e < experts; e += kWarp)
      if (keys[e] > most) most = keys[e], place = e;
    const int best = place_of_largest(most, place);
    if (best % kWarp == lane) keys[best] = 0;
    if (k == lane) chosen = best;
  }
  return chosen;
}

/// What a block knows of its tokens: of each expert the sum of p / sum p and its slots; behind them the sum of logsumexp^2
/// and the first token that is not finite.
struct BlockSum {
  float share;
  std::int32_t count;
};

struct RouteArgs {
  const float *z, *bias;       // bias may be null
  const std::int32_t* forced;  // may be null
  std::int32_t* index;
  float* weights;
  BlockSum* sums;  // [blocks, E + 1]
  int tokens;
  RoutingRule rule;
};

__global__ void __launch_bounds__(kRouterThreads) route_kernel(const RouteArgs a) {
  extern __shared__ float shared[];
  __shared__ float squares[kRouterWarps];
  __shared__ std::int32_t bad[kRouterWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int experts = static_cast<int>(a.rule.experts), slots = static_cast<int>(a.rule.top_k);
  float* const z = shared + warp * 4 * experts;
  auto* const keys = reinterpret_cast<std::uint32_t*>(z + experts);
  float* const shares = z + 2 * experts;
  auto* const counts = reinterpret_cast<std::int32_t*>(z + 3 * experts);
  for (int e = lane; e < experts; e += kWarp) shares[e] = 0, counts[e] = 0;
  float of_squares = 0;
  std::int32_t first_bad = INT_MAX;
  const bool by_logit = !a.bias && a.rule.groups == 1;
  for (int t = blockIdx.x * kRouterWarps + warp; t < a.tokens; t += gridDim.x * kRouterWarps) {
    const float* from = a.z + static_cast<std::int64_t>(t) * experts;
    for (int e = lane; e < experts; e += kWarp) z[e] = from[e];
    const TokenScores scores = token_scores(a.rule, z);
    for (int e = lane; e < experts; e += kWarp) {
      const float p = scores.probability(z[e]);
      keys[e] = ordered(by_logit ? z[e] : a.bias ? p + a.bias[e] : p);
      shares[e] += p / scores.sum;
    }
    __syncwarp();
    const std::int64_t slot = static_cast<std::int64_t>(t) * slots + lane;
    int expert = 0;
    if (a.forced) {
      if (lane < slots) expert = a.forced[slot];
    } else {
      if (a.rule.group_top_k < a.rule.groups) leave_out_groups(a.rule, keys);
      expert = choose_experts(a.rule, keys);
    }
    float sum;
    const float g = gate_of(a.rule, scores, z[expert], lane < slots, sum);
    if (lane < slots) {
      a.index[slot] = expert;
      a.weights[slot] = scores.finite ? g * static_cast<float>(a.rule.scale) : NAN;
      atomicAdd(counts + expert, 1);
    }
    of_squares += scores.logsumexp() * scores.logsumexp();
    if (!scores.finite) first_bad = min(first_bad, t);
    __syncwarp();
  }
  if (lane == 0) squares[warp] = of_squares, bad[warp] = first_bad;
  __syncthreads();
  for (int e = threadIdx.x; e <= experts; e += kRouterThreads) {
    float share = 0;
    std::int32_t count = e < experts ? 0 : INT_MAX;
    for (int w = 0; w < kRouterWarps; ++w) {
      const float* of_warp = shared + w * 4 * experts;
      share += e < experts ? of_warp[2 * experts + e] : squares[w];
      if (e < experts)
        count += reinterpret_cast<const std::int32_t*>(of_warp)[3 * experts + e];
      else
        count = min(count, bad[w]);
    }
    a.sums[blockIdx.x * (experts + 1) + e] = {share, count};
  }
}

/// One block over what all have left: a warp has every 32nd block, its lanes the experts.
__global__ void __launch_bounds__(kFinishThreads)
    finish_route_kernel(float* report, std::int32_t* bad, const BlockSum* sums, int blocks, int experts,
                        float tokens, float slots) {
  __shared__ BlockSum parts[kWarp][kWarp + 1];
  __shared__ float buffer[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float balance = 0;
  for (int first = 0; first <= experts; first += kWarp) {
    const int e = first + lane;
    const bool counts = e < experts;  // else it is the first bad token
    BlockSum sum{0, counts ? 0 : INT_MAX};
    if (e <= experts) {
#pragma unroll 8
      for (int b = warp; b < blocks; b += kWarp) {
        const BlockSum more = sums[b * (experts + 1) + e];
        sum = {sum.share + more.share, counts ? sum.count + more.count : min(sum.count, more.count)};
      }
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && e <= experts) {
      for (int w = 1; w < kWarp; ++w) {
        const BlockSum more = parts[w][lane];
        sum = {sum.share + more.share, counts ? sum.count + more.count : min(sum.count, more.count)};
      }
      if (counts) {
        report[e] = static_cast<float>(sum.count);
        balance +=
            static_cast<float>(experts) * (static_cast<float>(sum.count) / slots) * (sum.share / tokens);
      } else {
        report[experts + 1] = sum.share / tokens;
        *bad = sum.count == INT_MAX ? -1 : sum.count;
      }
    }
    __syncthreads();
  }
  balance = block_sum(balance, buffer);
  if (threadIdx.x == 0) report[experts] = balance;
}

/// A block for each layer. Counts are whole numbers, and so are these sums.
__global__ void __launch_bounds__(kRouterThreads)
    update_routing_bias_kernel(float* biases, const float* all_counts, int experts, float rate) {
  __shared__ double buffer[kWarp];
  float* bias = biases + static_cast<std::int64_t>(blockIdx.x) * experts;
  const float* counts = all_counts + static_cast<std::int64_t>(blockIdx.x) * experts;
  double total = 0;
  for (int e = threadIdx.x; e < experts; e += kRouterThreads) total += counts[e];
  total = block_sum(total, buffer);
  for (int e = threadIdx.x; e < experts; e += kRouterThreads) {
    const double less = total - static_cast<double>(experts) * counts[e];  // than the mean
    bias[e] += less > 0 ? rate : less < 0 ? -rate : 0.0f;
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_route(const ops::Route& op) {
  using namespace cuda;
  check_rule(op.rule);
  plans_->matmul(op.z, plain(op.x), plain(op.router), {});
  const int experts = static_cast<int>(op.rule.experts), tokens = static_cast<int>(op.z.rows);
  const int blocks = std::min((tokens + kRouterWarps - 1) / kRouterWarps, sm_count() * kBlocksPerSm);
  auto* sums =
      static_cast<BlockSum*>(scratch(static_cast<std::size_t>(blocks) * (experts + 1) * sizeof(BlockSum)));
  const RouteArgs args{op.z.as<float>(),
                       op.bias.as<float>(),
                       op.forced.as<std::int32_t>(),
                       op.index.as<std::int32_t>(),
                       op.weights.as<float>(),
                       sums,
                       tokens,
                       op.rule};
  const std::size_t shared_bytes = std::size_t{kRouterWarps} * 4 * experts * sizeof(float);
  route_kernel<<<blocks, kRouterThreads, shared_bytes, stream()>>>(args);
  finish_route_kernel<<<1, kFinishThreads, 0, stream()>>>(op.report.as<float>(), op.bad.as<std::int32_t>(),
                                                          sums, blocks, experts, static_cast<float>(tokens),
                                                          static_cast<float>(op.index.size()));
  launched("route");
}

void CudaDevice::do_update_routing_bias(const ops::UpdateRoutingBias& op) {
  cuda::
      update_routing_bias_kernel<<<static_cast<unsigned>(op.bias.rows), cuda::kRouterThreads, 0, stream()>>>(
          op.bias.as<float>(), op.counts.as<float>(), static_cast<int>(op.bias.cols), op.rate);
  launched("update_routing_bias");
}

}  // namespace precbench
