// Hopper attention backward, dq = scale ds k with p = exp(scale q k^T - lse), dp = dout v^T,
// ds = p (dp - delta).
//
// A block computes one tile of dq after another: 64 queries of a head per math warpgroup, whose q and dout
// stay in shared memory, against blocks of keys:
//
//                 global memory / L2
//                        |  TMA
//                        v
//   producer   q, dout of the tile      [ k, v ][ k, v ] ...     a ring in shared memory
//   1 thread                                |  full    ^  empty: all math warpgroups have read the stage
//                                           v          |
//   warpgroup    | q k^T | dout v^T |         | ds k ||  q k^T of the next block ...
//                         p = exp  |  ds     |            in registers: ds is the A operand of ds k
//
// The wgmmas of a step are waited for after the next ones have been issued, and while one warpgroup computes
// p and ds the other uses the tensor cores. Every dq has one writer and a fixed order of additions.
#pragma once

#include "kernels/cuda/attention/hopper_bwd_common.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::hopper {

template <int kHead, int kKeys, int kStages, int kBuffers, bool kCapped = false>
struct DqShape : BwdShape<kHead, kKeys, kStages, kBuffers, false, kCapped> {};

struct NoValues {};
/// Own: q, dout, then dq in place of q. Streamed: k, v.
template <class S>
using DqShared = BwdShared<S, NoValues>;

struct DqTile {
  int sequence, head, first;
  int blocks;  ///< key blocks that its last query sees

  /// Returns false if this block has no tile in the round.
  template <class S>
  __device__ bool find(const BackwardProblem& problem, int round) {
    const int index = tile_of_round(round);
    if (index >= problem.tiles) return false;
    const int of_row = problem.tiles / problem.tile_rows;  // heads of all sequences
    first = (problem.tile_rows - 1 - index / of_row) * S::kOwn;
    sequence = index % of_row / problem.heads;
    head = index % of_row % problem.heads;
    const int last = min(first + S::kOwn, problem.queries) - 1;
    blocks = (max(min(last + problem.offset + 1, problem.keys), 0) + S::kStreamedRows - 1) / S::kStreamedRows;
    return true;
  }
};

template <class S>
__device__ void produce(DqShared<S>& shared, const BackwardMaps& maps, const BackwardProblem& problem) {
  PipelineState<S::kBuffers> own;
  PipelineState<S::kStages> streamed;
  DqTile tile{};
  for (int round = 0; tile.find<S>(problem, round); ++round) {
    shared.load_own(maps, tile.sequence, tile.first, tile.head * S::kHead, own);
    const int column = tile.head / (problem.heads / problem.kv_heads) * S::kHead;
    const auto first = first_key_block<S>(problem, tile.first, S::kStreamedRows);
#pragma unroll 1
    for (int block = tile.blocks - 1; block >= first; --block)
      shared.load_streamed(
          maps, tile.sequence, block * S::kStreamedRows, column, 0, [](int, Barrier&) {}, streamed);
  }
}

/// A warpgroup's loop over the keys that its queries see, the last ones first: dq without the scale.
template <class S>
struct DqMainloop {
  DqShared<S>& shared;
  const BackwardProblem& problem;
  const DqTile& tile;
  const int own, warpgroup, thread;
  PipelineState<S::kStages>& state;
  const int first = tile.first + warpgroup * kRows, first_seen = first + problem.offset;
  const std::uint64_t q = smem_descriptor(shared.own[own][0][warpgroup]),
                      dout = smem_descriptor(shared.own[own][1][warpgroup]);
  float lse[2], delta[2];
  int held = -1;  ///< the stage whose last wgmma is in flight

  __device__ inline void load_values() {
    const float* values =
        problem.values +
        (static_cast<std::int64_t>(tile.sequence) * problem.heads + tile.head) * 2 * problem.padded;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first + row_of(thread) + 8 * half;
      const bool there = query < problem.padded;
      lse[half] = there ? values[row_value_index(query)] : INFINITY;
      delta[half] = there ? values[row_value_index(query) + 64] : 0;
    }
  }

  __device__ inline void release_held() {
    if (held >= 0) release(shared.empty[held]);
  }

  /// Processes one block of keys.
  __device__ inline void step(int block, float (&dq)[S::kOuts]) {
    const int stage = state.stage, first_key = block * S::kStreamedRows;
    const unsigned parity = state.parity;
    state.next();
    shared.full[stage].wait(parity);
    float p[S::kScores], dp[S::kScores];
    wgmma_fence();
    multiply_heads<S::kHead>(p, q, smem_descriptor(shared.streamed[0][0]) + stage * S::kStageStep);
    wgmma_commit_group();
    wgmma_fence();
    multiply_heads<S::kHead>(dp, dout, smem_descriptor(shared.streamed[0][1]) + stage * S::kStageStep);
    wgmma_commit_group();
    wgmma_wait_group<1>(p);  // and the last of the previous step
    release_held();
    held = stage;
#pragma unroll
    for (int i = 0; i < S::kScores; ++i) {
      if constexpr (S::kCapped) {  // ds has the cap's derivative as a factor
        const float tanh = cuda::tanh_of(p[i], problem.tanh_exponent);
        p[i] = cuda::exp2_approx(tanh * problem.scale_log2 - lse[i % 4 / 2]) * cuda::tanh_slope(tanh);
      } else {
        p[i] = cuda::exp2_approx(p[i] * problem.scale_log2 - lse[i % 4 / 2]);
      }
    }
    if (first_key + S::kStreamedRows - 1 > min(first_seen, problem.keys - 1))
      mask_keys(p, first_seen, problem.keys - 1, first_key, thread, 0.0f);
    if constexpr (S::kCapped) {
      const int in_window = first_seen - problem.window + 1;
      if (first_key < in_window + kRows - 1) mask_keys_before(p, in_window, first_key, thread, 0.0f);
    }
    warpgroup_fence_operand(p);
    shared.full[stage].wait(
        parity);  // keeps the compiler from moving the exponentials behind the wgmma's end
    wgmma_wait_group(dp);
#pragma unroll
    for (int i = 0; i < S::kScores; ++i) p[i] *= dp[i] - delta[i % 4 / 2];
    std::uint32_t ds[S::kScores / 2];
    round_to_operand(ds, p);
    wgmma_fence();
    multiply_rows(dq, ds,
                  mn_major_descriptor(shared.streamed[0][0], S::kStreamedBytes) + stage * S::kStageStep);
    wgmma_commit_group();
  }

  __device__ inline void run(float (&dq)[S::kOuts]) {
    load_values();
    int block = tile.blocks - 1;
    const auto first_block = first_key_block<S>(problem, tile.first, S::kStreamedRows);
    for (; block >= first_block && block * S::kStreamedRows > first_seen + kRows - 1;
         --block, state.next()) {  // after all of these rows
      shared.full[state.stage].wait(state.parity);
      release(shared.empty[state.stage]);
    }
#pragma unroll 1
    for (; block >= first_block; --block) step(block, dq);
    wgmma_wait_group(dq);
    release_held();
  }
};

template <class S>
__device__ inline void consume(DqShared<S>& shared, const BackwardMaps& maps, const BackwardProblem& problem,
                               int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  PipelineState<S::kBuffers> own;
  PipelineState<S::kStages> streamed;
  DqTile tile{};
  for (int round = 0; tile.find<S>(problem, round); ++round) {
    float dq[S::kOuts];
#pragma unroll
    for (float& x : dq) x = 0;
    shared.await_own(own, round, thread);
    DqMainloop<S>{shared, problem, tile, own.stage, warpgroup, thread, streamed}.run(dq);
#pragma unroll
    for (float& x : dq) x *= problem.scale;
    auto& boxes = shared.own[own.stage][0][warpgroup];
    write_head(boxes, dq, thread);
    fence_proxy_async();
    named_barrier_sync(1 + warpgroup, kWarpgroup);
    if (thread == 0) {
      store_head(maps.out[0], tile.sequence, tile.first + warpgroup * kRows, tile.head * S::kHead, boxes);
      tma_store_commit_group();
      shared.release_own(own);
    }
    own.next();
  }
  if (thread == 0) tma_store_wait_group_read<0>();
}

template <class S>
__global__ __launch_bounds__(S::kThreads,
                             1) void attend_backward_dq(const __grid_constant__ BackwardMaps maps,
                                                        const BackwardProblem problem) {
  wait_for_work_before();
  run_warpgroups<S, DqShared<S>>(maps, problem);
}

}  // namespace precbench::hopper
