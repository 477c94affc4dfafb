// Hopper attention backward, dk and dv of heads of 256: as in hopper_bwd_dkv.cuh, but a thread has registers for the sums of
// only one of them. So both math warpgroups have the same 64 keys: one computes dv, the other dk.
//
//   producer      k, v of the tile      [ q, dout, lse, delta ][ q, dout, lse, delta ] ... ring in shared memory
//
//   warpgroup 0   | k q^T of the next block |  p = exp      | p^T dout
//                                              |  p, times the derivative of the cap: in shared memory
//                                              v
//   warpgroup 1   | v dout^T of the next block |  ds = p (dp - delta) | ds^T q
//
// Each of the four GEMMs is computed once. Warpgroup 0 may be two blocks ahead of the other. Every sum has one writer and a
// fixed order.
#pragma once

#include "kernels/cuda/attention/hopper_bwd_dkv.cuh"

namespace precbench::hopper {

/// Blocks of 32 queries. A warpgroup holds up to three stages, the previous, this and the next block's; with a fourth, one is
/// loaded meanwhile.
template <int kHead, int kStages, bool kCapped>
struct WideDkvShape : BwdShape<kHead, 32, kStages, 1, true, kCapped> {
  static constexpr bool kWide = true;
  static constexpr int kOwnBlocks = 1, kOwn = kRows;
  static_assert(kStages >= 3);
};

template <class S>
struct alignas(1024) WideDkvShared : DkvShared<S> {
  static constexpr int kFactorBuffers = 2;
  /// Factors of dp - delta in ds: p, times 1 - tanh^2 with soft-capped scores; [4 of a thread][thread].
  float4 factors[kFactorBuffers][S::kScores / 4][kWarpgroup];
  Barrier factors_full[kFactorBuffers], factors_empty[kFactorBuffers];

  __device__ void init() {
    DkvShared<S>::init();
    for (int i = 0; i < kFactorBuffers; ++i) {
      factors_full[i].init(4);
      factors_empty[i].init(4);
    }
  }
};

/// Result of a math warpgroup, dv or dk; its value is the index of the operands of its first GEMM among the tile's own matrices
/// (k, v) and among the streamed ones (q, dout).
enum WideRole { kValues = 0, kKeys = 1 };

/// A warpgroup's loop over the queries of its tile: dv, or dk without the scale.
template <class S, WideRole kRole>
struct WideDkvMainloop {
  using Sums = float (&)[S::kScores];

  WideDkvShared<S>& shared;
  const BackwardProblem& problem;
  const DkvTile& tile;
  const int thread;
  PipelineState<S::kStages>& state;
  PipelineState<WideDkvShared<S>::kFactorBuffers>& buffer;
  const std::uint64_t own = smem_descriptor(shared.own[0][kRole][0]);
  int block = 0;
  int held = -1;  ///< the stage whose last wgmma is in flight

  /// x = k q^T, or v dout^T, of the block in a stage.
  __device__ inline void begin_gemm(Sums x, int stage) {
    wgmma_fence();
    multiply_heads<S::kHead>(x, own, smem_descriptor(shared.streamed[0][kRole]) + stage * S::kStageStep);
    wgmma_commit_group();
  }

  /// Replaces scores by probabilities and gives the other warpgroup the factors of ds.
  __device__ inline void exponentiate_scores(Sums p, int stage, int half_block) {
    float tanhs[S::kScores];
    if constexpr (S::kCapped) cuda::apply_softcap(p, problem.tanh_exponent);
#pragma unroll
    for (int i = 0; i < S::kScores; ++i) tanhs[i] = p[i];
    exponentiate(p, shared.values.of[stage][0][0] + 8 * half_block, problem.scale_log2, thread);
    // Last key that the block's first query sees, and the last existing key, relative to the tile's first.
    const int seen = (tile.first_block + block) * S::kStreamedRows + problem.offset - tile.first,
              last = problem.keys - 1 - tile.first;
    if (min(seen, last) < kRows - 1) mask_queries(p, seen, last, thread);
    if constexpr (S::kCapped)
      if (seen + S::kStreamedRows > problem.window) mask_queries_after(p, seen, problem.window, thread);
    shared.factors_empty[buffer.stage].wait(buffer.parity ^ 1);
#pragma unroll
    for (int i = 0; i < S::kScores; i += 4) {
      float factor[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        factor[j] = S::kCapped ? p[i + j] * cuda::tanh_slope(tanhs[i + j]) : p[i + j];
      shared.factors[buffer.stage][i / 4][thread] = make_float4(factor[0], factor[1], factor[2], factor[3]);
    }
    release(shared.factors_full[buffer.stage]);
  }

  /// Replaces dp by ds.
  __device__ inline void differentiate_scores(Sums dp, int stage, int half_block) {
    float factors[S::kScores];
    shared.factors_full[buffer.stage].wait(buffer.parity);
#pragma unroll
    for (int i = 0; i < S::kScores; i += 4) {
      const float4 of = shared.factors[buffer.stage][i / 4][thread];
      factors[i] = of.x, factors[i + 1] = of.y, factors[i + 2] = of.z, factors[i + 3] = of.w;
    }
    release(shared.factors_empty[buffer.stage]);
    differentiate(factors, dp, shared.values.of[stage][0][1] + 8 * half_block, thread);
#pragma unroll
    for (int i = 0; i < S::kScores; ++i) dp[i] = factors[i];
  }

  /// Processes one block of queries; `more`: there is another. `next` holds its scores or dp, and then the next block's.
  __device__ inline void step(Sums next, bool more, float (&sum)[S::kOuts]) {
    const int stage = state.stage;
    const unsigned parity = state.parity;
    state.next();
    float x[S::kScores];
#pragma unroll
    for (int i = 0; i < S::kScores; ++i) x[i] = next[i];
    const int ahead = more ? state.stage : stage;  // after the last block once more this one's
    shared.full[ahead].wait(more ? state.parity : parity);
    begin_gemm(next, ahead);
    const int half_block = (tile.first_block + block) % (64 / S::kStreamedRows);
    if constexpr (kRole == kValues)
      exponentiate_scores(x, stage, half_block);
    else
      differentiate_scores(x, stage, half_block);
    buffer.next();
    if (++block == tile.blocks) block = 0;
    warpgroup_fence_operand(x);
    wgmma_wait_group<1>(sum);  // of the previous step, whose words may be overwritten now
    if (held >= 0) release(shared.empty[held]);
    held = stage;
    std::uint32_t words[S::kScores / 2];
    round_to_operand(words, x);
    wgmma_fence();
    multiply_rows(
        sum, words,
        mn_major_descriptor(shared.streamed[0][1 - kRole], S::kStreamedBytes) + stage * S::kStageStep);
    wgmma_commit_group();
    wgmma_wait_group<1>(next);
  }

  __device__ inline void run(float (&sum)[S::kOuts]) {
    const int steps = tile.blocks * tile.heads;
    if (steps == 0) return;
    float next[S::kScores];
    shared.full[state.stage].wait(state.parity);
    begin_gemm(next, state.stage);
    wgmma_wait_group(next);
#pragma unroll 1
    for (int i = 1; i <= steps; ++i) step(next, i < steps, sum);
    wgmma_wait_group(sum);
    release(shared.empty[held]);
  }
};

/// Runs all tiles of a math warpgroup.
template <class S, WideRole kRole>
__device__ inline void consume_role(WideDkvShared<S>& shared, const BackwardMaps& maps,
                                    const BackwardProblem& problem) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  constexpr int kGradient = kRole == kKeys ? 0 : 1;  // dk, dv
  PipelineState<1> own;
  PipelineState<S::kStages> streamed;
  PipelineState<WideDkvShared<S>::kFactorBuffers> buffer;
  DkvTile tile{};
  for (int round = 0; tile.find<S>(problem, round); ++round) {
    float sum[S::kOuts];
#pragma unroll
    for (float& x : sum) x = 0;
    shared.await_own(own, round, thread);
    WideDkvMainloop<S, kRole>{shared, problem, tile, thread, streamed, buffer}.run(sum);
    if constexpr (kRole == kKeys) {
#pragma unroll
      for (float& x : sum) x *= problem.scale;
    }
    if (problem.parts > 1) {
      const PieceRows piece = piece_rows<S>(problem, tile, tile.first);
      store_piece<S>(piece.dk + kGradient * piece.count, piece.keys, piece.pitch, sum, thread);
      named_barrier_sync(1 + kRole, kWarpgroup);  // all threads have read k or v
    } else {
      // In place of k or v, which only this warpgroup reads.
      auto& boxes = shared.own[0][kRole][0];
      write_head(boxes, sum, thread);
      fence_proxy_async();
      named_barrier_sync(1 + kRole, kWarpgroup);
      if (thread == 0) {
        store_head(maps.out[kGradient], tile.sequence, tile.first, tile.kv_head * S::kHead, boxes);
        tma_store_commit_group();
      }
    }
    if (thread == 0) shared.release_own(own);
    own.next();
  }
  if (thread == 0) tma_store_wait_group_read<0>();
}

template <class S>
__device__ inline void consume(WideDkvShared<S>& shared, const BackwardMaps& maps,
                               const BackwardProblem& problem, int warpgroup) {
  if (warpgroup == 0)
    consume_role<S, kValues>(shared, maps, problem);
  else
    consume_role<S, kKeys>(shared, maps, problem);
}

template <class S>
__global__ __launch_bounds__(S::kThreads,
                             1) void attend_backward_dkv_wide(const __grid_constant__ BackwardMaps maps,
                                                              const BackwardProblem problem) {
  wait_for_work_before();
  run_warpgroups<S, WideDkvShared<S>>(maps, problem);
}

}  // namespace precbench::hopper
