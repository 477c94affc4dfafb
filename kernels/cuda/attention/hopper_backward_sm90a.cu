// The backward kernels for Hopper of this build, and how they are launched. Compiled for sm_90a alone
// (kernels/CMakeLists.txt).
// Row values, query side (dq), key side (dk, dv), and where a group's heads are dealt out to parts the sum of theirs. Both
// sides make p and ds: seven products where five would do, but each sum has one writer and a fixed order.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/attention/hopper_fused.cuh"
#include "kernels/cuda/attention/hopper_keys.cuh"
#include "kernels/cuda/attention/hopper_launch.h"
#include "kernels/cuda/attention/hopper_queries.cuh"

namespace precbench {
namespace {

using namespace hopper;

constexpr int kThreads = 256;

/// values: lse for powers of two, infinite for a query that sees no key and behind the last, and delta, the row sum of
/// dout * out. A warp makes both of a query, and clears as much of dq_sums, where there are such.
template <int kHead>
__global__ void prepare_values(float* values, float* dq_sums, const float* lse, const __nv_bfloat16* dout,
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
    to[64] = delta;
  }
  if (!dq_sums) return;
  float* sums = dq_sums + ((sequence * heads + head) * padded + query) * kHead;
#pragma unroll
  for (int d = 0; d < kHead; d += 64) *reinterpret_cast<float2*>(sums + d + 2 * lane) = {0, 0};
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

/// dq = scale times the sums, whose squares (BackwardProblem) a block of threads each takes.
template <int kHead, int kColumns>
__global__ void finish_dq(__nv_bfloat16* dq, const float* sums, float scale, int queries, int padded, int heads,
                          std::int64_t pitch) {
  constexpr int kBoxes = kHead / kColumns;
  const int square = static_cast<int>(blockIdx.x), of_head = padded / 64 * kBoxes, thread = static_cast<int>(threadIdx.x);
  const int head = square / of_head % heads, sequence = square / of_head / heads;
  const int block = square % of_head / kBoxes, box = square % kBoxes;
  const auto* from = reinterpret_cast<const float4*>(sums) + static_cast<std::int64_t>(square) * (kColumns * 16) + thread;
  float4 all[kColumns / 8];
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) all[i] = from[i * 128];
  const int row = block * 64 + row_of(thread), odd = thread % 2;
  __nv_bfloat16* to = dq + (static_cast<std::int64_t>(sequence) * queries + row) * pitch + head * kHead + box * kColumns +
                      thread % 4 / 2 * 4;
  // Two threads side by side have columns side by side: each makes four of every second group of eight.
#pragma unroll
  for (int i = 0; i < kColumns / 8; i += 2)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto words = [&](const float4& x) {
        return half == 0 ? bf16_pair(x.x * scale, x.y * scale) : bf16_pair(x.z * scale, x.w * scale);
      };
      const std::uint32_t even_group = words(all[i]), odd_group = words(all[i + 1]);
      const std::uint32_t given = __shfl_xor_sync(~0u, odd ? even_group : odd_group, 1);
      if (row + 8 * half < queries)
        *reinterpret_cast<uint2*>(to + 8 * half * pitch + 8 * (i + odd)) =
            odd ? make_uint2(given, odd_group) : make_uint2(even_group, given);
    }
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

/// Of dq in FP32.
std::int64_t sum_bytes(const AttentionShape& s) {
  return s.B * s.q_width() * whole(s.T, kValuePadding) * kValuePadding * 4;
}

template <class K, bool kOnePass>
std::int64_t workspace_bytes(const AttentionShape& s) {
  const int parts = parts_of<K>(s);
  return value_bytes(s) + (kOnePass ? sum_bytes(s) : 0) + (parts > 1 ? parts * s.B * s.keys() * s.kv_width() * 4 : 0);
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

template <class K, class Shared, class Kernel>
void launch_key_side(Kernel kernel, const Operands& operands, BackwardProblem problem, cudaStream_t stream) {
  const AttentionShape& s = operands.s;
  problem.tile_rows = whole(problem.keys, K::kOwn);
  problem.of_row = problem.parts * static_cast<int>(s.B) * problem.kv_heads;
  problem.tiles = problem.tile_rows * problem.of_row;
  const KeyRows& gradients = operands.gradients;
  const BackwardMaps maps = {
      .own = {operands.of_keys(operands.keys.k, operands.keys, kRows),
              operands.of_keys(operands.keys.v, operands.keys, kRows)},
      .met = {operands.q(K::kMet), operands.dout(K::kMet)},
      .out = {operands.of_keys(gradients.k, gradients, kRows),
              operands.of_keys(gradients.v, gradients, kRows)},
  };
  launch_side<K, Shared>(kernel, maps, problem, stream);

  if (problem.parts == 1) return;
  const std::int64_t rows = s.B * s.keys();
  sum_pieces<<<dim3(whole(rows * gradients.width / 4, kThreads), 2), kThreads, 0, stream>>>(
      static_cast<__nv_bfloat16*>(gradients.k), static_cast<__nv_bfloat16*>(gradients.v), gradients.pitch,
      problem.pieces, problem.parts, rows, static_cast<int>(gradients.width));
  PRECBENCH_CHECK(cudaGetLastError());
}

/// What both plans begin with; K: the shape of the key side.
template <class K>
BackwardProblem problem_of(const AttentionGradients& on, const AttentionShape& s, bool one_pass) {
  auto* values = static_cast<float*>(on.workspace);
  float* sums = values + value_bytes(s) / 4;
  const int parts = parts_of<K>(s), group = static_cast<int>(s.heads / s.kv_heads);
  return {
      .queries = static_cast<int>(s.T),
      .keys = static_cast<int>(s.keys()),
      .offset = static_cast<int>(s.offset),
      .heads = static_cast<int>(s.heads),
      .kv_heads = static_cast<int>(s.kv_heads),
      .parts = parts,
      .tile_rows = 0,
      .tiles = 0,
      .of_row = 0,
      .group = group,
      .heads_of_part = group / parts,
      .scale = score_scale(s),
      .scale_log2 = score_scale_log2(s),
      .values = values,
      .padded = whole(s.T, kValuePadding) * kValuePadding,
      .of_head = whole(s.T, kValuePadding) * kValuePadding / 64,
      .dq_sums = one_pass ? sums : nullptr,
      .pieces = sums + (one_pass ? sum_bytes(s) / 4 : 0),
  };
}

template <int kHead>
void launch_prepare(const AttentionGradients& on, const BackwardProblem& problem, std::int64_t sequences,
                    cudaStream_t stream) {
  const std::int64_t rows = sequences * problem.heads * problem.padded;
  prepare_values<kHead><<<whole(rows * 32, kThreads), kThreads, 0, stream>>>(
      const_cast<float*>(problem.values), problem.dq_sums, on.forward.lse.as<const float>(),
      on.dout.as<const __nv_bfloat16>(), on.forward.out.as<const __nv_bfloat16>(), problem.queries, problem.padded,
      problem.heads, rows);
  PRECBENCH_CHECK(cudaGetLastError());
}

/// Q and K: the shapes of the two sides.
template <class Q, class K>
void launch_sides(const AttentionGradients& on, const AttentionShape& s, CUstream_st* stream) {
  const BackwardProblem problem = problem_of<K>(on, s, false);
  launch_prepare<K::kHead>(on, problem, s.B, stream);
  const Operands operands{on, s};
  launch_query_side<Q>(operands, problem, stream);
  launch_key_side<K, KeyShared<K>>(attend_backward_keys<K>, operands, problem, stream);
}

template <class F>
void launch_fused(const AttentionGradients& on, const AttentionShape& s, CUstream_st* stream) {
  const BackwardProblem problem = problem_of<F>(on, s, true);
  launch_prepare<F::kHead>(on, problem, s.B, stream);
  launch_key_side<F, FusedShared<F>>(attend_backward<F>, {on, s}, problem, stream);
  finish_dq<F::kHead, F::kShareColumns><<<static_cast<int>(s.B) * problem.heads * (problem.padded / 64) * F::kShares, kWarpgroup, 0, stream>>>(
      on.dqkv.as<__nv_bfloat16>(), problem.dq_sums, problem.scale, problem.queries, problem.padded, problem.heads,
      on.dqkv.cols);
  PRECBENCH_CHECK(cudaGetLastError());
}

template <class Q, class K>
constexpr HopperBackward sides_of(const char* name) {
  return {.name = name,
          .head_dim = K::kHead,
          .deterministic = true,
          .workspace_bytes = workspace_bytes<K, false>,
          .launch = launch_sides<Q, K>};
}

template <class F>
constexpr HopperBackward fused_of(const char* name) {
  return {.name = name,
          .head_dim = F::kHead,
          .deterministic = false,
          .workspace_bytes = workspace_bytes<F, true>,
          .launch = launch_fused<F>};
}

constexpr HopperBackward kKernels[] = {
    fused_of<FusedShape<128, 64, 3, 1, true>>("own A"),
    fused_of<FusedShape<128, 64, 3, 1, false>>("own B"),
    fused_of<FusedShape<64, 128, 2, 1, true>>("own A"),
    fused_of<FusedShape<64, 128, 3, 1, false>>("own B"),
    fused_of<FusedShape<64, 64, 4, 1, true>>("own E"),
    fused_of<FusedShape<64, 64, 4, 1, false>>("own F"),
    sides_of<QueryShape<128, 64, 4, 1>, KeyShape<128, 4, 1, false>>("own 128x64"),
    sides_of<QueryShape<64, 128, 3, 2>, KeyShape<64, 4, 2, true>>("own 128x128 and 128x64"),
};

}  // namespace

std::span<const HopperBackward> all_hopper_backward_kernels() { return kKernels; }

}  // namespace precbench
