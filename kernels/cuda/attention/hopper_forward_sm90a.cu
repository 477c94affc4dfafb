// Instances and launch of the Hopper forward kernels. Compiled for sm_90a only (kernels/CMakeLists.txt).
#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/attention/hopper_forward.cuh"
#include "kernels/cuda/attention/hopper_launch.h"
#include "kernels/cuda/check.h"

namespace precbench {
namespace {

using namespace hopper;

template <class S>
void launch(const AttentionTensors& on, const AttentionShape& s, CUstream_st* stream) {
  const KeyRows keys = key_rows(on.qkv, on.kv, s);
  const ForwardMaps maps = {
      .q = head_map(on.qkv.data, s.B, s.T, s.q_width(), on.qkv.cols, 64),
      .k = head_map(keys.k, s.B, s.keys(), keys.width, keys.pitch, S::kKeys),
      .v = head_map(keys.v, s.B, s.keys(), keys.width, keys.pitch, S::kKeys),
      .out = head_map(on.out.data, s.B, s.T, s.q_width(), s.q_width(), 64),
  };
  const auto rows = static_cast<int>((s.T + S::kQueries - 1) / S::kQueries);
  ForwardProblemOf<S> problem = {};
  static_cast<ForwardProblem&>(problem) = {
      .queries = static_cast<int>(s.T),
      .keys = static_cast<int>(s.keys()),
      .offset = static_cast<int>(s.offset),
      .heads = static_cast<int>(s.heads),
      .kv_heads = static_cast<int>(s.kv_heads),
      .tile_rows = rows,
      .tiles = rows * static_cast<int>(s.B * s.heads),
      .scale_log2 = S::kCapped ? softcap_log2(s) : score_scale_log2(s),
      .lse = on.lse.as<float>(),
      .tanh_exponent = S::kCapped ? softcap_exponent(s) : 0,
  };
  if constexpr (S::kCapped) problem.window = window_of(s);
  const auto kernel = attend_forward<S>;
  constexpr int kBytes = sizeof(ForwardShared<S>);
  PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int blocks = std::min(multiprocessors(), problem.tiles);
  kernel<<<blocks, S::kThreads, kBytes, stream>>>(maps, problem);
  PRECBENCH_CHECK(cudaGetLastError());
}

template <class S>
constexpr HopperForward kernel_of(const char* name) {
  return {.name = name, .head_dim = S::kHead, .softcap = S::kCapped, .launch = launch<S>};
}

// Per head width, the widest block of keys first.
constexpr HopperForward kKernels[] = {
    kernel_of<ForwardShape<128, 2, 160, 2>>("own 128x160"),
    kernel_of<ForwardShape<128, 2, 128, 2>>("own 128x128"),
    kernel_of<ForwardShape<64, 3, 128, 3>>("own 192x128"),
    kernel_of<ForwardShape<256, 2, 80, 2>>("own 128x80"),
    kernel_of<ForwardShape<128, 2, 128, 2, true>>("own soft-capped 128x128"),
    kernel_of<ForwardShape<64, 3, 128, 3, true>>("own soft-capped 192x128"),
    kernel_of<ForwardShape<256, 2, 80, 2, true>>("own soft-capped 128x80"),
};

}  // namespace

std::span<const HopperForward> all_hopper_forward_kernels() { return kKernels; }

}  // namespace precbench
