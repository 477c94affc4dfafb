// The backward kernels for Hopper of this build, and how they are launched. Compiled for sm_90a alone
// (kernels/CMakeLists.txt).
// Row values, query side (dq), key side (dk, dv), and where a group's heads are dealt out to parts the sum of theirs. Both
// sides make p and ds: seven products where five would do, but each sum has one writer and a fixed order.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/attention/hopper_keys.cuh"
#include "kernels/cuda/attention/hopper_launch.h"
#include "kernels/cuda/attention/hopper_queries.cuh"

namespace precbench {
namespace {

using namespace hopper;

constexpr int kThreads = 256;

/// values[row of a head][2][padded]: lse for powers of two, infinite for a query that sees no key and behind the last, and
/// delta, the row sum of dout * out. A warp makes both of a query.
template <int kHead>
__global__ void prepare_values(float* values, const float* lse, const __nv_bfloat16* dout,
                               const __nv_bfloat16* out, int queries, int padded, int heads,
                               std::int64_t count) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (item >= count) return;
  const int head = static_cast<int>(item % heads), lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t sequence = item / heads / padded;
  const int query = static_cast<int>(item / heads % padded);
  float* to = values + (sequence * heads + head) * 2 * padded + value_place(query);
  float delta = 0, shift = INFINITY;
  if (query < queries) {
    const std::int64_t at = ((sequence * queries + query) * heads + head) * kHead;
#pragma unroll
    for (int d = 0; d < kHead; d += 64) {
      const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(dout + at + d)[lane]);
      const float2 y = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(out + at + d)[lane]);
      delta += x.x * y.x + x.y * y.y;
    }
    for (int step = 16; step > 0; step /= 2) delta += __shfl_xor_sync(~0u, delta, step);
    const float of_row = lse[(sequence * heads + head) * queries + query];
    if (of_row != -INFINITY) shift = of_row * 1.4426950408889634f;
  }
  if (lane == 0) {
    to[0] = shift;
    to[padded] = delta;
  }
}

/// dk (blockIdx.y 0) or dv (1): the sum of the parts' pieces, in their order; each has rows of `width`, and those of the
/// gradients are `pitch` apart. A thread makes four elements.
__global__ void sum_pieces(__nv_bfloat16* dk, __nv_bfloat16* dv, std::int64_t pitch, const float* pieces,
                           int parts, std::int64_t rows, int width) {
  const std::int64_t at = 4 * (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x),
                     count = rows * width;
  if (at >= count) return;
  const float* from = pieces + blockIdx.y * count + at;
  float4 sum = *reinterpret_cast<const float4*>(from);
  for (int part = 1; part < parts; ++part) {
    const float4 more = *reinterpret_cast<const float4*>(from + part * 2 * count);
    sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
  }
  __nv_bfloat16* to = (blockIdx.y == 0 ? dk : dv) + at / width * pitch + at % width;
  *reinterpret_cast<uint2*>(to) = {bf16_pair(sum.x, sum.y), bf16_pair(sum.z, sum.w)};
}

int whole(std::int64_t length, int tile) { return static_cast<int>((length + tile - 1) / tile); }

std::int64_t value_bytes(const AttentionShape& s) {
  return s.B * s.heads * 2 * whole(s.T, kValuePadding) * kValuePadding * 4;
}

/// Parts of a group's heads: as many as divide it and as are wanted for several tiles to a multiprocessor.
template <class K>
int parts_of(const AttentionShape& s) {
  constexpr int kTilesEach = 3;
  const auto group = static_cast<int>(s.heads / s.kv_heads);
  const std::int64_t tiles = whole(s.keys(), K::kOwn) * s.B * s.kv_heads;
  for (int parts = 1; parts < group; ++parts)
    if (group % parts == 0 && tiles * parts >= kTilesEach * multiprocessors()) return parts;
  return group;
}

template <class K>
std::int64_t workspace_bytes(const AttentionShape& s) {
  const int parts = parts_of<K>(s);
  return value_bytes(s) + (parts > 1 ? parts * s.B * s.keys() * s.kv_width() * 4 : 0);
}

template <class S, class Shared, class Kernel>
void launch_side(Kernel kernel, const BackwardMaps& maps, const BackwardProblem& problem,
                 cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= 232448);
  PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<std::min(multiprocessors(), problem.tiles), S::kThreads, kBytes, stream>>>(maps, problem);
  PRECBENCH_CHECK(cudaGetLastError());
}

/// The maps of a problem's matrices, in boxes of so many rows.
struct Operands {
  const AttentionGradients& on;
  const AttentionShape& s;
  KeyRows keys = key_rows(on.forward.qkv, on.forward.kv, s), gradients = key_rows(on.dqkv, on.dkv, s);

  CUtensorMap q(int rows) const { return of_queries(on.forward.qkv.data, on.forward.qkv.cols, rows); }
  CUtensorMap dout(int rows) const { return of_queries(on.dout.data, s.q_width(), rows); }
  CUtensorMap dq() const { return of_queries(on.dqkv.data, on.dqkv.cols, kRows); }
  CUtensorMap of_queries(void* data, std::int64_t pitch, int rows) const {
    return head_map(data, s.B, s.T, s.q_width(), pitch, rows);
  }
  CUtensorMap of_keys(void* data, const KeyRows& in, int rows) const {
    return head_map(data, s.B, s.keys(), in.width, in.pitch, rows);
  }
};

template <class Q>
void launch_query_side(const Operands& operands, BackwardProblem problem, cudaStream_t stream) {
  problem.tile_rows = whole(problem.queries, Q::kOwn);
  problem.tiles = problem.tile_rows * static_cast<int>(operands.s.B) * problem.heads;
  const BackwardMaps maps = {
      .own = {operands.q(kRows), operands.dout(kRows)},
      .met = {operands.of_keys(operands.keys.k, operands.keys, Q::kMet),
              operands.of_keys(operands.keys.v, operands.keys, Q::kMet)},
      .out = {operands.dq(), {}},
  };
  launch_side<Q, QueryShared<Q>>(attend_backward_queries<Q>, maps, problem, stream);
}

template <class K>
void launch_key_side(const Operands& operands, BackwardProblem problem, cudaStream_t stream) {
  const AttentionShape& s = operands.s;
  problem.tile_rows = whole(problem.keys, K::kOwn);
  problem.tiles = problem.tile_rows * problem.parts * static_cast<int>(s.B) * problem.kv_heads;
  const KeyRows& gradients = operands.gradients;
  const BackwardMaps maps = {
      .own = {operands.of_keys(operands.keys.k, operands.keys, kRows),
              operands.of_keys(operands.keys.v, operands.keys, kRows)},
      .met = {operands.q(K::kMet), operands.dout(K::kMet)},
      .out = {operands.of_keys(gradients.k, gradients, kRows),
              operands.of_keys(gradients.v, gradients, kRows)},
  };
  launch_side<K, KeyShared<K>>(attend_backward_keys<K>, maps, problem, stream);

  if (problem.parts == 1) return;
  const std::int64_t rows = s.B * s.keys();
  sum_pieces<<<dim3(whole(rows * gradients.width / 4, kThreads), 2), kThreads, 0, stream>>>(
      static_cast<__nv_bfloat16*>(gradients.k), static_cast<__nv_bfloat16*>(gradients.v), gradients.pitch,
      problem.pieces, problem.parts, rows, static_cast<int>(gradients.width));
  PRECBENCH_CHECK(cudaGetLastError());
}

/// Q and K: the shapes of the two sides.
template <class Q, class K>
void launch(const AttentionGradients& on, const AttentionShape& s, CUstream_st* stream) {
  auto* values = static_cast<float*>(on.workspace);
  const BackwardProblem problem = {
      .queries = static_cast<int>(s.T),
      .keys = static_cast<int>(s.keys()),
      .offset = static_cast<int>(s.offset),
      .heads = static_cast<int>(s.heads),
      .kv_heads = static_cast<int>(s.kv_heads),
      .parts = parts_of<K>(s),
      .tile_rows = 0,
      .tiles = 0,
      .scale = score_scale(s),
      .scale_log2 = score_scale_log2(s),
      .values = values,
      .padded = whole(s.T, kValuePadding) * kValuePadding,
      .pieces = values + value_bytes(s) / 4,
  };
  const std::int64_t rows = s.B * s.heads * problem.padded;
  prepare_values<K::kHead><<<whole(rows * 32, kThreads), kThreads, 0, stream>>>(
      values, on.forward.lse.as<const float>(), on.dout.as<const __nv_bfloat16>(),
      on.forward.out.as<const __nv_bfloat16>(), problem.queries, problem.padded, problem.heads, rows);
  PRECBENCH_CHECK(cudaGetLastError());
  const Operands operands{on, s};
  launch_query_side<Q>(operands, problem, stream);
  launch_key_side<K>(operands, problem, stream);
}

template <class Q, class K>
constexpr HopperBackward kernel_of(const char* name) {
  return {.name = name, .head_dim = K::kHead, .workspace_bytes = workspace_bytes<K>, .launch = launch<Q, K>};
}

constexpr HopperBackward kKernels[] = {
    kernel_of<QueryShape<128, 64, 4, 1>, KeyShape<128, 4, 1, false>>("own 128x64"),
    kernel_of<QueryShape<64, 128, 3, 2>, KeyShape<64, 4, 2, true>>("own 128x128 and 128x64"),
};

}  // namespace

std::span<const HopperBackward> all_hopper_backward_kernels() { return kKernels; }

}  // namespace precbench
