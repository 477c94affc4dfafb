// Instances and launches of the Hopper backward kernels. Compiled for sm_90a only (kernels/CMakeLists.txt).
//
// First the row values. Then either one kernel that adds dq in global memory, or a dq kernel and a dk/dv
// kernel: these compute p and ds twice, seven GEMMs instead of five, but every sum has one writer and a fixed
// order. Last the remaining sums (hopper_bwd_postprocess.cuh).
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/attention/hopper_bwd_dkv.cuh"
#include "kernels/cuda/attention/hopper_bwd_dkv_wide.cuh"
#include "kernels/cuda/attention/hopper_bwd_dq.cuh"
#include "kernels/cuda/attention/hopper_bwd_fused.cuh"
#include "kernels/cuda/attention/hopper_bwd_postprocess.cuh"
#include "kernels/cuda/attention/hopper_launch.h"

namespace precbench {
namespace {

using namespace hopper;

int whole(std::int64_t length, int tile) { return static_cast<int>((length + tile - 1) / tile); }

std::int64_t value_bytes(const AttentionShape& s) {
  return s.B * s.heads * 2 * whole(s.T, kValuePadding) * kValuePadding * 4;
}

/// Returns the parts of a group's heads: as few as divide it and give every multiprocessor a tile.
template <class K>
int parts_of(const AttentionShape& s) {
  const auto group = static_cast<int>(s.heads / s.kv_heads);
  const std::int64_t tiles = whole(s.keys(), K::kOwn) * s.B * s.kv_heads;
  for (int parts = 1; parts < group; ++parts)
    if (group % parts == 0 && tiles * parts >= multiprocessors()) return parts;
  return group;
}

/// Returns the bytes of dq in FP32.
std::int64_t sum_bytes(const AttentionShape& s) {
  return s.B * s.q_width() * whole(s.T, kValuePadding) * kValuePadding * 4;
}

template <class K, bool kOnePass>
std::int64_t workspace_bytes(const AttentionShape& s) {
  const int parts = parts_of<K>(s);
  return value_bytes(s) + (kOnePass ? sum_bytes(s) : 0) +
         (parts > 1 ? parts * s.B * s.keys() * s.kv_width() * 4 : 0);
}

template <class S, class Shared, class Kernel>
void launch_persistent(Kernel kernel, const BackwardMaps& maps, const BackwardProblem& problem,
                       cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= 232448);
  PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<std::min(multiprocessors(), problem.tiles), S::kThreads, kBytes, stream>>>(maps, problem);
  PRECBENCH_CHECK(cudaGetLastError());
}

/// Tensor maps of a problem's matrices, with boxes of the given number of rows.
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
      .streamed = {operands.of_keys(operands.keys.k, operands.keys, Q::kStreamedRows),
                   operands.of_keys(operands.keys.v, operands.keys, Q::kStreamedRows)},
      .out = {operands.dq(), {}},
  };
  launch_persistent<Q, DqShared<Q>>(attend_backward_dq<Q>, maps, problem, stream);
}

template <class K, class Shared, class Kernel>
void launch_dkv(Kernel kernel, const Operands& operands, BackwardProblem problem, cudaStream_t stream) {
  const AttentionShape& s = operands.s;
  problem.tile_rows = whole(problem.keys, K::kOwn);
  problem.of_row = problem.parts * static_cast<int>(s.B) * problem.kv_heads;
  problem.tiles = problem.tile_rows * problem.of_row;
  const KeyRows& gradients = operands.gradients;
  const BackwardMaps maps = {
      .own = {operands.of_keys(operands.keys.k, operands.keys, kRows),
              operands.of_keys(operands.keys.v, operands.keys, kRows)},
      .streamed = {operands.q(K::kStreamedRows), operands.dout(K::kStreamedRows)},
      .out = {operands.of_keys(gradients.k, gradients, kRows),
              operands.of_keys(gradients.v, gradients, kRows)},
  };
  launch_persistent<K, Shared>(kernel, maps, problem, stream);
}

/// `shares`: of dq.
template <int kHead, int kColumns>
void launch_postprocess(const Operands& operands, const BackwardProblem& problem, int shares,
                        cudaStream_t stream) {
  const KeyRows& keys = operands.gradients;
  const Results to = {
      .dq = operands.on.dqkv.as<__nv_bfloat16>(),
      .dk = static_cast<__nv_bfloat16*>(keys.k),
      .dv = static_cast<__nv_bfloat16*>(keys.v),
      .query_pitch = operands.on.dqkv.cols,
      .key_pitch = keys.pitch,
      .key_rows = operands.s.B * operands.s.keys(),
      .key_width = static_cast<int>(keys.width),
      .shares = shares,
  };
  const int blocks =
      shares + (problem.parts > 1 ? whole(to.key_rows * keys.width / 2, kPostprocessThreads) : 0);
  if (blocks == 0) return;
  bwd_postprocess<kHead, kColumns><<<blocks, kPostprocessThreads, 0, stream>>>(to, problem);
  PRECBENCH_CHECK(cudaGetLastError());
}

/// Returns the arguments common to both variants; K: the shape of the dk/dv kernel.
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
      .scale_log2 = K::kCapped ? softcap_log2(s) : score_scale_log2(s),
      .values = values,
      .padded = whole(s.T, kValuePadding) * kValuePadding,
      .of_head = whole(s.T, kValuePadding) * kValuePadding / 64,
      .dq_sums = one_pass ? sums : nullptr,
      .pieces = sums + (one_pass ? sum_bytes(s) / 4 : 0),
      .tanh_exponent = K::kCapped ? softcap_exponent(s) : 0,
      .inverse_cap_log2 = K::kCapped ? 1 / softcap_log2(s) : 0,
      .window = window_of(s),
  };
}

template <int kHead>
void launch_prepare(const AttentionGradients& on, const BackwardProblem& problem, std::int64_t sequences,
                    cudaStream_t stream) {
  const std::int64_t rows = sequences * problem.heads * problem.padded;
  bwd_preprocess<kHead><<<whole(rows * (kHead / 8), kPreprocessThreads), kPreprocessThreads, 0, stream>>>(
      const_cast<float*>(problem.values), problem.dq_sums, on.forward.lse.as<const float>(),
      on.dout.as<const __nv_bfloat16>(), on.forward.out.as<const __nv_bfloat16>(), problem.queries,
      problem.padded, problem.heads, rows);
  PRECBENCH_CHECK(cudaGetLastError());
}

/// Q and K: shapes of the dq and the dk/dv kernel.
template <class Q, class K>
void launch_two_pass(const AttentionGradients& on, const AttentionShape& s, CUstream_st* stream) {
  const BackwardProblem problem = problem_of<K>(on, s, false);
  launch_prepare<K::kHead>(on, problem, s.B, stream);
  const Operands operands{on, s};
  launch_query_side<Q>(operands, problem, stream);
  if constexpr (K::kWide)
    launch_dkv<K, WideDkvShared<K>>(attend_backward_dkv_wide<K>, operands, problem, stream);
  else
    launch_dkv<K, DkvShared<K>>(attend_backward_dkv<K>, operands, problem, stream);
  launch_postprocess<K::kHead, 64>(operands, problem, 0, stream);
}

template <class F>
void launch_fused(const AttentionGradients& on, const AttentionShape& s, CUstream_st* stream) {
  const BackwardProblem problem = problem_of<F>(on, s, true);
  launch_prepare<F::kHead>(on, problem, s.B, stream);
  const Operands operands{on, s};
  launch_dkv<F, FusedShared<F>>(attend_backward<F>, operands, problem, stream);
  const int shares = static_cast<int>(s.B) * problem.heads * problem.of_head * F::kShares;
  launch_postprocess<F::kHead, F::kShareColumns>(operands, problem, shares, stream);
}

template <class Q, class K>
constexpr HopperBackward two_pass(const char* name) {
  static_assert(Q::kCapped == K::kCapped);
  return {.name = name,
          .head_dim = K::kHead,
          .softcap = K::kCapped,
          .deterministic = true,
          .workspace_bytes = workspace_bytes<K, false>,
          .launch = launch_two_pass<Q, K>};
}

template <class F>
constexpr HopperBackward fused_of(const char* name) {
  return {.name = name,
          .head_dim = F::kHead,
          .softcap = F::kCapped,
          .deterministic = false,
          .workspace_bytes = workspace_bytes<F, true>,
          .launch = launch_fused<F>};
}

constexpr HopperBackward kKernels[] = {
    fused_of<FusedShape<128, 64, 2, 1>>("own 128x64 in one pass"),
    fused_of<FusedShape<64, 128, 2, 1>>("own 128x128 in one pass"),
    two_pass<DqShape<128, 64, 4, 1>, DkvShape<128, 4, 1, false>>("own 128x64"),
    two_pass<DqShape<64, 128, 3, 2>, DkvShape<64, 4, 2, true>>("own 128x128 and 128x64"),
    two_pass<DqShape<256, 32, 3, 1>, WideDkvShape<256, 4, false>>("own 128x32 and 64x32"),
    fused_of<FusedShape<128, 64, 2, 1, true>>("own soft-capped 128x64 in one pass"),
    fused_of<FusedShape<64, 128, 2, 1, true>>("own soft-capped 128x128 in one pass"),
    two_pass<DqShape<128, 64, 4, 1, true>, DkvShape<128, 4, 1, false, true>>("own soft-capped 128x64"),
    two_pass<DqShape<64, 128, 3, 2, true>, DkvShape<64, 4, 2, true, true>>(
        "own soft-capped 128x128 and 128x64"),
    two_pass<DqShape<256, 32, 3, 1, true>, WideDkvShape<256, 4, true>>("own soft-capped 128x32 and 64x32"),
};

}  // namespace

std::span<const HopperBackward> all_hopper_backward_kernels() { return kKernels; }

}  // namespace precbench
