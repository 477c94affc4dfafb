// The router's gradients. dz is FP32 and must not be rounded, but tensor cores take BF16. dz is therefore
// split into three BF16 numbers of 8 bits each: the GEMMs of the parts, added in FP32, give that of dz
// itself.
//
//   parts [T, 3E]  = [high | middle | low] of dz
//   dx             = addend + parts [router; router; router]
//   drouter        = or += the sum of the three blocks of parts^T x
#include <algorithm>

#include "kernels/cuda/elementwise/elements.cuh"
#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kParts = 3;

struct RouteBackwardArgs {
  const float *z, *dw, *report;
  const std::int32_t* index;
  std::uint16_t* parts;  // [tokens, pitch]
  int tokens, pitch;
  RoutingRule rule;
  float balance, z_loss, loss_scale;  // balance: on each slot's share f
};

/// Adds the gradient through the weights to dz [experts], which is 0.
__device__ inline void weight_gradient(const RouteBackwardArgs& a, const TokenScores& scores, int t,
                                       const float* z, float* dz) {
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(a.rule.experts);
  const bool chosen = lane < a.rule.top_k;
  const std::int64_t slot = t * a.rule.top_k + lane;
  const int expert = chosen ? a.index[slot] : 0;
  const float dg = chosen ? static_cast<float>(a.rule.scale) * a.dw[slot] : 0.0f;
  float sum;
  const float g = gate_of(a.rule, scores, z[expert], chosen, sum);
  const float mean = warp_sum(g * dg);
  if (chosen) {
    const float p = scores.probability(z[expert]);
    dz[expert] = scores.softmax ? g * (a.rule.normalise ? dg - mean : dg)
                                : (a.rule.normalise ? (dg - mean) / sum : dg) * p * (1.0f - p);
  }
  __syncwarp();
  if (scores.softmax && !a.rule.normalise)
    for (int e = lane; e < experts; e += kWarp) dz[e] -= scores.probability(z[e]) * mean;
}

/// Adds the gradient of the two losses.
__device__ inline void add_loss_gradients(const RouteBackwardArgs& a, const TokenScores& scores,
                                          const float* z, float* dz) {
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(a.rule.experts);
  if (a.balance != 0) {
    float average = 0;
    for (int e = lane; e < experts; e += kWarp)
      average += scores.probability(z[e]) / scores.sum * (a.balance * a.report[e]);
    average = warp_sum(average);
    for (int e = lane; e < experts; e += kWarp) {
      const float p = scores.probability(z[e]), above = a.balance * a.report[e] - average;
      dz[e] += scores.softmax ? p * above : above / scores.sum * p * (1.0f - p);
    }
  }
  if (a.z_loss != 0)
    for (int e = lane; e < experts; e += kWarp)
      dz[e] +=
          2.0f * a.z_loss * a.loss_scale * scores.logsumexp() * (expf(z[e] - scores.largest) / scores.total);
}

__global__ void __launch_bounds__(kRouterThreads) route_backward_kernel(const RouteBackwardArgs a) {
  wait_for_work_before();
  extern __shared__ float shared[];
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(a.rule.experts);
  const int t = blockIdx.x * kRouterWarps + threadIdx.x / kWarp;
  if (t >= a.tokens) return;
  float* const z = shared + threadIdx.x / kWarp * 2 * experts;
  float* const dz = z + experts;
  for (int e = lane; e < experts; e += kWarp) {
    z[e] = a.z[static_cast<std::int64_t>(t) * experts + e];
    dz[e] = 0;
  }
  __syncwarp();
  const TokenScores scores = token_scores(a.rule, z);
  weight_gradient(a, scores, t, z, dz);
  add_loss_gradients(a, scores, z, dz);
  std::uint16_t* const parts = a.parts + static_cast<std::int64_t>(t) * a.pitch;
  for (int e = lane; e < experts; e += kWarp) {
    float rest = dz[e];
    for (int part = 0; part < kParts; ++part) {
      std::uint16_t rounded;
      from_float(rounded, rest);
      parts[part * experts + e] = rounded;
      rest -= to_float(rounded);
    }
  }
  for (int i = kParts * experts + lane; i < a.pitch; i += kWarp) parts[i] = 0;
}

/// Repeats the router once per part, and zeros after that.
__global__ void __launch_bounds__(kElementThreads)
    repeat_router_kernel(std::uint16_t* out, const std::uint16_t* router, std::int64_t size,
                         std::int64_t total) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i < total) out[i] = i < kParts * size ? router[i % size] : std::uint16_t{0};
}

template <class T>
__global__ void __launch_bounds__(kElementThreads)
    sum_parts_kernel(T* out, const float* parts, std::int64_t size, bool accumulate) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (int part = kParts - 1; part >= 0; --part) sum += parts[part * size + i];
  from_float(out[i], accumulate ? to_float(out[i]) + sum : sum);
}

/// A block per expert adds dz over the tokens, from its parts.
template <class T>
__global__ void __launch_bounds__(kElementThreads)
    logit_bias_backward_kernel(T* dbias, const std::uint16_t* parts, int tokens, int pitch, int experts,
                               bool accumulate) {
  wait_for_work_before();
  __shared__ float buffer[kWarp];
  float sum = 0;
  for (int t = threadIdx.x; t < tokens; t += kElementThreads) {
    const std::uint16_t* const of_token = parts + static_cast<std::int64_t>(t) * pitch + blockIdx.x;
    float dz = 0;
    for (int part = kParts - 1; part >= 0; --part) dz += to_float(of_token[part * experts]);
    sum += dz;
  }
  sum = block_sum(sum, buffer);
  T& out = dbias[blockIdx.x];
  if (threadIdx.x == 0) from_float(out, accumulate ? to_float(out) + sum : sum);
}

unsigned single_blocks(std::int64_t count) {
  return static_cast<unsigned>((count + kElementThreads - 1) / kElementThreads);
}

/// Matrices behind the workspace of the GEMMs.
struct Intermediates {
  Tensor parts, router, sums;  // [T, pitch], [pitch, C], f32 [pitch, C]
  std::int64_t bytes;

  /// `start` may be null, to learn the bytes.
  Intermediates(const ops::RouteBackward& op, std::byte* start) {
    const std::int64_t T = op.z.rows, C = op.x.cols, pitch = detail::padded(kParts * op.rule.experts, 8);
    std::int64_t used = 0;
    const auto place = [&](DType dtype, std::int64_t rows, std::int64_t cols) {
      const Tensor tensor{start ? start + used : nullptr, dtype, rows, cols};
      used += detail::padded(tensor.bytes(), MatmulPlans::kAlignment);
      return tensor;
    };
    parts = place(DType::bf16, T, pitch);
    router = place(DType::bf16, pitch, C);
    sums = place(DType::f32, pitch, C);
    bytes = used;
  }
};

}  // namespace
}  // namespace cuda

ScratchSizes CudaDevice::scratch_of(const ops::RouteBackward& op) const {
  const std::int64_t bytes = MatmulPlans::kWorkspaceBytes + cuda::Intermediates(op, nullptr).bytes;
  return {bytes / std::int64_t{sizeof(float)}};
}

void CudaDevice::do_route_backward(const ops::RouteBackward& op) {
  using namespace cuda;
  check_rule(op.rule);
  const std::int64_t T = op.z.rows, E = op.rule.experts, C = op.x.cols;
  const Intermediates made(op, plans_->behind_workspace(Intermediates(op, nullptr).bytes));
  const Tensor &parts = made.parts, &router = made.router, &sums = made.sums;

  const RouteBackwardArgs args{
      op.z.as<float>(),
      op.dw.as<float>(),
      op.report.as<float>(),
      op.index.as<std::int32_t>(),
      parts.as<std::uint16_t>(),
      static_cast<int>(T),
      static_cast<int>(parts.cols),
      op.rule,
      op.balance * op.loss_scale * static_cast<float>(E) / static_cast<float>(op.index.size()),
      op.z_loss,
      op.loss_scale};
  const auto blocks = static_cast<unsigned>((T + kRouterWarps - 1) / kRouterWarps);
  route_backward_kernel<<<blocks, kRouterThreads, std::size_t{kRouterWarps} * 2 * E * sizeof(float),
                          stream()>>>(args);
  repeat_router_kernel<<<single_blocks(router.size()), kElementThreads, 0, stream()>>>(
      router.as<std::uint16_t>(), op.router.as<std::uint16_t>(), E * C, router.size());
  if (!op.addend.empty()) do_convert({op.dx, op.addend});
  plans_->matmul(op.dx, plain_operand(parts), plain_operand(router, true),
                 {.role = GemmRole::dgrad, .accumulate = !op.addend.empty()});
  plans_->matmul(sums, plain_operand(parts, true), plain_operand(op.x, true), {.role = GemmRole::wgrad});
  with_type(op.drouter.dtype, [&](auto type) {
    using Element = decltype(type);
    sum_parts_kernel<<<single_blocks(E * C), kElementThreads, 0, stream()>>>(
        op.drouter.as<Element>(), sums.as<float>(), E * C, op.accumulate);
    if (!op.dlogit_bias.empty())
      logit_bias_backward_kernel<<<static_cast<unsigned>(E), kElementThreads, 0, stream()>>>(
          op.dlogit_bias.as<Element>(), parts.as<std::uint16_t>(), static_cast<int>(T),
          static_cast<int>(parts.cols), static_cast<int>(E), op.accumulate);
  });
  launched("route_backward");
}

}  // namespace precbench
