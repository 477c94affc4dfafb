// The router: logits by cuBLASLt, then one warp per token, whose lanes hold the experts in registers. Sums
// over tokens are made in the order of tokens, warps and blocks, the last in a second kernel, so that equal
// inputs give equal bits.
#include <algorithm>
#include <climits>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/cuda/hopper/early_start.cuh"

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
constexpr int kTurns = 2;  // tokens per place of a block at a time, each in its own warp
constexpr int kRouteThreads = kTurns * kRouterThreads;
constexpr int kFinishWarps = 8;

/// Returns a key whose integer order is that of the floats: all keys are above 0, zeros are equal, NaN is
/// below all. Key 0 marks taken values.
__device__ inline std::uint32_t ordered(float x) {
  if (isnan(x)) return 1;
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

__device__ inline float from_ordered(std::uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xFFFFFFFFu));
}

/// Returns the index of the largest of the warp's keys, the first of equal ones; each lane offers its own
/// best.
__device__ inline int place_of_largest(std::uint32_t key, int place) {
  const std::uint32_t most = __reduce_max_sync(kAllLanes, key);
  return __reduce_min_sync(kAllLanes, key == most ? place : INT_MAX);
}

/// Excludes the experts outside the best groups; a lane has a group.
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

/// A lane's values of its experts: lane, lane + 32, ...
template <class T, int kPerLane>
struct Lanes {
  T of[kPerLane];

  __device__ static int expert(int i) { return static_cast<int>(threadIdx.x % kWarp) + i * kWarp; }
  /// Calls body(expert, its value) in order.
  template <class Body>
  __device__ void each(int experts, Body&& body) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (expert(i) < experts) body(expert(i), of[i]);
  }
  /// Returns an expert's value; lanes may ask for different experts.
  __device__ T at(int of_expert) const {
    T value = of[0];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const T there = __shfl_sync(kAllLanes, of[i], of_expert % kWarp);
      if (of_expert / kWarp == i) value = there;
    }
    return value;
  }
};

/// Returns to lane k the expert with the k-th largest key.
template <int kPerLane>
__device__ inline int choose_experts(int top_k, Lanes<std::uint32_t, kPerLane>& keys) {
  const int lane = threadIdx.x % kWarp;
  int chosen = 0;
  for (int k = 0; k < top_k; ++k) {
    std::uint32_t most = 0;
    int place = INT_MAX;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (keys.of[i] > most) most = keys.of[i], place = keys.expert(i);
    const int best = place_of_largest(most, place);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (keys.expert(i) == best) keys.of[i] = 0;
    if (k == lane) chosen = best;
  }
  return chosen;
}

/// Sums over the tokens of a block, or over all: per expert the sum of p / sum p and its slots; in the last
/// entry the sum of logsumexp^2 and the first non-finite token.
struct RouteSum {
  float share;
  std::int32_t count;
};

struct RouteArgs {
  const float *z, *bias;       // bias may be null
  const std::int32_t* forced;  // may be null
  std::int32_t* index;
  float* weights;
  RouteSum* sums;  // [E + 1, blocks]
  unsigned* done;  // set to 0
  int tokens;
  RoutingRule rule;
};

/// Routes one token: counts its slots in `counts`, and writes p / sum p and then its logsumexp to `shares` [E
/// + 1]. Returns true if all logits are finite.
template <int kPerLane>
__device__ inline bool route_token(const RouteArgs& a, int t, Lanes<float, kPerLane>& z, float* shares,
                                   std::int32_t* counts) {
  const int lane = threadIdx.x % kWarp;
  const int experts = static_cast<int>(a.rule.experts), slots = static_cast<int>(a.rule.top_k);
  const bool by_logit = !a.bias && a.rule.groups == 1;
  const TokenScores scores = token_scores_of(
      a.rule, [&](auto&& body) { z.each(experts, [&](int, float of_expert) { body(of_expert); }); });
  Lanes<std::uint32_t, kPerLane> keys{};
  float p[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = keys.expert(i);
    if (e >= experts) continue;
    p[i] = scores.probability(z.of[i]);
    keys.of[i] = ordered(by_logit ? z.of[i] : a.bias ? p[i] + a.bias[e] : p[i]);
  }
  const std::int64_t slot = static_cast<std::int64_t>(t) * slots + lane;
  int expert = 0;
  if (a.forced) {
    if (lane < slots) expert = a.forced[slot];
  } else {
    if (a.rule.group_top_k < a.rule.groups) {
      auto* const apart = reinterpret_cast<std::uint32_t*>(shares);
      keys.each(experts, [&](int e, std::uint32_t key) { apart[e] = key; });
      __syncwarp();
      leave_out_groups(a.rule, apart);
      keys.each(experts, [&](int e, std::uint32_t& key) { key = apart[e]; });
      __syncwarp();
    }
    expert = choose_experts(slots, keys);
  }
  float sum;
  const float g = gate_of(a.rule, scores, z.at(expert), lane < slots, sum);
  if (lane < slots) {
    a.index[slot] = expert;
    a.weights[slot] = scores.finite ? g * static_cast<float>(a.rule.scale) : NAN;
    atomicAdd(counts + expert, 1);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (keys.expert(i) < experts) shares[keys.expert(i)] = scores.softmax ? p[i] : p[i] / scores.sum;
  if (lane == 0) shares[experts] = scores.logsumexp();
  return scores.finite;
}

/// Warps w and w + 8 of a block alternate on the tokens of place w. A place's tokens are summed in order,
/// then the places.
template <int kPerLane>
__global__ void __launch_bounds__(kRouteThreads, kBlocksPerSm) route_kernel(const RouteArgs a) {
  wait_for_work_before();
  extern __shared__ float shared[];
  __shared__ std::int32_t first_bad;
  const int experts = static_cast<int>(a.rule.experts), width = experts + 1;
  const int warp = threadIdx.x / kWarp, place = warp % kRouterWarps, turn = warp / kRouterWarps;
  float* const mine = shared + warp * width;
  auto* const counts = reinterpret_cast<std::int32_t*>(shared + kTurns * kRouterWarps * width);
  for (int e = threadIdx.x; e < experts; e += kRouteThreads) counts[e] = 0;
  if (threadIdx.x == 0) {
    first_bad = INT_MAX;
    if (blockIdx.x == 0) *a.done = 0;
  }
  __syncthreads();
  // The sums of a place are divided among its threads by experts; one thread per place has the squares.
  constexpr int kThreadsOfPlace = kRouteThreads / kRouterWarps;
  constexpr int kSums = (kPerLane * kWarp + kThreadsOfPlace - 1) / kThreadsOfPlace;
  const int sum_place = threadIdx.x / kThreadsOfPlace, sum_first = threadIdx.x % kThreadsOfPlace;
  float sums[kSums] = {}, squares = 0;
  const int step = gridDim.x * kRouterWarps;
  const int first = blockIdx.x * kRouterWarps;
  for (int at = first; at < a.tokens; at += kTurns * step) {
    const int t = at + place + turn * step;
    if (t < a.tokens) {
      Lanes<float, kPerLane> z;
      const float* from = a.z + static_cast<std::int64_t>(t) * experts;
      z.each(experts, [&](int e, float& of_expert) { of_expert = from[e]; });
      if (!route_token(a, t, z, mine, counts) && threadIdx.x % kWarp == 0) atomicMin(&first_bad, t);
    } else {
      for (int e = threadIdx.x % kWarp; e < width; e += kWarp) mine[e] = 0;
    }
    __syncthreads();
#pragma unroll
    for (int of_turn = 0; of_turn < kTurns; ++of_turn) {
      const float* shares = shared + (of_turn * kRouterWarps + sum_place) * width;
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        if (const int e = sum_first + i * kThreadsOfPlace; e < experts) sums[i] += shares[e];
      squares += shares[experts] * shares[experts];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    if (const int e = sum_first + i * kThreadsOfPlace; e < experts) shared[sum_place * width + e] = sums[i];
  if (sum_first == 0) shared[sum_place * width + experts] = squares;
  __syncthreads();
  for (int e = threadIdx.x; e <= experts; e += kRouteThreads) {
    float share = 0;
    for (int w = 0; w < kRouterWarps; ++w) share += shared[w * width + e];
    a.sums[e * gridDim.x + blockIdx.x] = {share, e < experts ? counts[e] : first_bad};
  }
}

struct FinishArgs {
  float* report;
  std::int32_t* bad;
  const RouteSum* sums;  // [E + 1, blocks]
  RouteSum* totals;      // [E + 1]
  unsigned* done;        // finished blocks of this kernel
  int blocks, experts;
  float tokens, slots;
};

/// One warp per expert, and one for the last entry: a lane adds every 32nd block. The last block to finish
/// computes the balance loss from the totals.
__global__ void __launch_bounds__(kFinishWarps* kWarp) finish_route_kernel(const FinishArgs a) {
  wait_for_work_before();
  __shared__ bool last;
  const int lane = threadIdx.x % kWarp, e = blockIdx.x * kFinishWarps + threadIdx.x / kWarp;
  if (e <= a.experts) {
    const bool counts = e < a.experts;  // else it is the first bad token
    RouteSum sum{0, counts ? 0 : INT_MAX};
#pragma unroll 8
    for (int b = lane; b < a.blocks; b += kWarp) {
      const RouteSum more = a.sums[e * a.blocks + b];
      sum = {sum.share + more.share, counts ? sum.count + more.count : min(sum.count, more.count)};
    }
    float share = __shfl_sync(kAllLanes, sum.share, 0);
#pragma unroll
    for (int l = 1; l < kWarp; ++l) share += __shfl_sync(kAllLanes, sum.share, l);
    const int count =
        counts ? __reduce_add_sync(kAllLanes, sum.count) : __reduce_min_sync(kAllLanes, sum.count);
    if (lane == 0) {
      a.totals[e] = {share, count};
      if (counts) {
        a.report[e] = static_cast<float>(count);
      } else {
        a.report[a.experts + 1] = share / a.tokens;
        *a.bad = count == INT_MAX ? -1 : count;
      }
      __threadfence();
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(a.done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last || threadIdx.x >= kWarp) return;
  __threadfence();
  float balance = 0;
  for (int i = lane; i < a.experts; i += kWarp) {
    const RouteSum sum{__ldcg(&a.totals[i].share), __ldcg(&a.totals[i].count)};
    balance +=
        static_cast<float>(a.experts) * (static_cast<float>(sum.count) / a.slots) * (sum.share / a.tokens);
  }
  balance = warp_sum(balance);
  if (lane == 0) a.report[a.experts] = balance;
}

__global__ void __launch_bounds__(kRouterThreads)
    add_logit_bias_kernel(float* z, const std::uint16_t* bias, std::int64_t size, std::int64_t experts) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRouterThreads + threadIdx.x;
  if (i < size) z[i] += to_float(bias[i % experts]);
}

/// One block per layer. Counts are integers, and so these sums are exact.
__global__ void __launch_bounds__(kRouterThreads)
    update_routing_bias_kernel(float* biases, const float* all_counts, int experts, float rate) {
  wait_for_work_before();
  __shared__ double buffer[kWarp];
  float* bias = biases + static_cast<std::int64_t>(blockIdx.x) * experts;
  const float* counts = all_counts + static_cast<std::int64_t>(blockIdx.x) * experts;
  double total = 0;
  for (int e = threadIdx.x; e < experts; e += kRouterThreads) total += counts[e];
  total = block_sum(total, buffer);
  for (int e = threadIdx.x; e < experts; e += kRouterThreads) {
    const double less = total - static_cast<double>(experts) * counts[e];  // below the mean
    bias[e] += less > 0 ? rate : less < 0 ? -rate : 0.0f;
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_route(const ops::Route& op) {
  using namespace cuda;
  check_rule(op.rule);
  plans_->matmul(op.z, plain_operand(op.x), plain_operand(op.router), {});
  if (!op.logit_bias.empty())
    add_logit_bias_kernel<<<static_cast<unsigned>((op.z.size() + kRouterThreads - 1) / kRouterThreads),
                            kRouterThreads, 0, stream()>>>(
        op.z.as<float>(), op.logit_bias.as<std::uint16_t>(), op.z.size(), op.rule.experts);
  const int experts = static_cast<int>(op.rule.experts), tokens = static_cast<int>(op.z.rows);
  const int blocks = std::min((tokens + kRouterWarps - 1) / kRouterWarps, sm_count() * kBlocksPerSm);
  auto* const totals = static_cast<RouteSum*>(
      scratch((static_cast<std::size_t>(blocks) + 1) * (experts + 1) * sizeof(RouteSum) + sizeof(unsigned)));
  RouteSum* const sums = totals + experts + 1;
  auto* const done = reinterpret_cast<unsigned*>(sums + static_cast<std::size_t>(blocks) * (experts + 1));
  const RouteArgs args{op.z.as<float>(),
                       op.bias.as<float>(),
                       op.forced.as<std::int32_t>(),
                       op.index.as<std::int32_t>(),
                       op.weights.as<float>(),
                       sums,
                       done,
                       tokens,
                       op.rule};
  const std::size_t shared_bytes =
      (std::size_t{kTurns} * kRouterWarps * (experts + 1) + experts) * sizeof(float);
  const auto kernel = experts <= kWarp       ? route_kernel<1>
                      : experts <= 2 * kWarp ? route_kernel<2>
                      : experts <= 4 * kWarp ? route_kernel<4>
                                             : route_kernel<8>;
  static_assert(kMostExperts <= 8 * kWarp);
  kernel<<<blocks, kRouteThreads, shared_bytes, stream()>>>(args);
  const int finish_blocks = (experts + kFinishWarps) / kFinishWarps;
  finish_route_kernel<<<finish_blocks, kFinishWarps * kWarp, 0, stream()>>>(
      {op.report.as<float>(), op.bad.as<std::int32_t>(), sums, totals, done, blocks, experts,
       static_cast<float>(tokens), static_cast<float>(op.index.size())});
  launched("route");
}

void CudaDevice::do_update_routing_bias(const ops::UpdateRoutingBias& op) {
  cuda::
      update_routing_bias_kernel<<<static_cast<unsigned>(op.bias.rows), cuda::kRouterThreads, 0, stream()>>>(
          op.bias.as<float>(), op.counts.as<float>(), static_cast<int>(op.bias.cols), op.rate);
  launched("update_routing_bias");
}

}  // namespace precbench
