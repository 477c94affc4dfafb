// Hopper attention backward in one pass: dq, dk and dv with five GEMMs. Like the dk/dv kernel
// (hopper_bwd_dkv.cuh), but each step also adds its share of dq to global memory, so the order of its sums is
// not deterministic.
//
//                 global memory / L2                                       dq in FP32, added to in L2
//                        |  TMA                                                  ^
//                        v                                                       |  bulk reduction
//   producer   k, v of the tile      [ q, dout, lse, delta ] ...         dq share of the step, shared memory
//   1 thread                                |  full    ^  empty                  ^
//                                           v          |                         |
//   warpgroup    | v dout^T | p^T dout |   | ds^T q | ds k | k q^T of the next block ...
//          k q^T: p = exp  |     ds    | ds of both warpgroups is exchanged in shared memory
//
// p and ds are A operands in registers for dv and dk. For dq, whose sum runs over the keys of both
// warpgroups, ds goes to shared memory. Each warpgroup then computes half of the step's dq: half of the
// head's columns, or of the block's queries.
#pragma once

#include "kernels/cuda/attention/hopper_bwd_dkv.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::hopper {

/// Each warpgroup computes half of a step's dq: of the columns, or of twice as many queries.
template <int kHead, int kStreamedRows, int kStages, int kBuffers, bool kCapped = false>
struct FusedShape : BwdShape<kHead, kStreamedRows, kStages, kBuffers, true, kCapped> {
  static constexpr int kSquares = kStreamedRows / 64;                ///< of ds, of a warpgroup's keys
  static constexpr int kShareColumns = kHead * kStreamedRows / 128;  ///< per 64 queries
  static constexpr int kShares = kHead / kShareColumns;              ///< side by side
  static constexpr int kShareFloats = 64 * kShareColumns;
  static_assert(kHead * kStreamedRows == 128 * 64);
};

constexpr int kNoShare = -1;

template <class S>
struct alignas(1024) FusedShared : DkvShared<S> {
  std::uint8_t ds[2][S::kMathWarpgroups][S::kSquares][kRowsBytes];  ///< by step parity; rows are keys
  float dq[S::kMathWarpgroups][S::kShareFloats];                    ///< in accumulator order
  int dq_number[S::kMathWarpgroups];  ///< of the share; kNoShare: no more follow
  Barrier dq_full[S::kMathWarpgroups], dq_empty[S::kMathWarpgroups];

  __device__ void init() {
    DkvShared<S>::init();
    for (int i = 0; i < S::kMathWarpgroups; ++i) {
      dq_full[i].init(4);
      dq_empty[i].init(1);
    }
  }

  /// Hands a math warpgroup's i-th share to the thread that adds it: write(float*) writes it.
  template <class Write>
  __device__ void offer_share(int warpgroup, int thread, int i, int number, Write&& write) {
    dq_empty[warpgroup].wait(i % 2 ^ 1);
    write(dq[warpgroup]);
    if (thread == 0) dq_number[warpgroup] = number;
    fence_proxy_async();
    release(dq_full[warpgroup]);
  }
};

/// Adds `bytes` (a multiple of 16) of FP32 numbers in shared memory to global memory; both 16-byte aligned.
/// Otherwise like tma_store_2d.
__device__ inline void tma_reduce_add_1d(float* to, const float* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}

/// Returns the index of a warpgroup's share of a block's dq. A share stores its accumulators as [4 of a
/// thread][thread].
template <class S>
__device__ inline int share_of_dq(const BackwardProblem& problem, int sequence, int head, int block,
                                  int warpgroup) {
  return (sequence * problem.heads + head) * (problem.of_head * S::kShares) + 2 * block + warpgroup;
}

/// Threads 32 and 64 each add one warpgroup's shares to dq.
template <class S>
__device__ inline void assist(FusedShared<S>& shared, const BackwardProblem& problem) {
  if (threadIdx.x != 32 && threadIdx.x != 64) return;
  const int warpgroup = static_cast<int>(threadIdx.x) / 32 - 1;
  for (PipelineState<1> state;; state.next()) {
    shared.dq_full[warpgroup].wait(state.parity);
    const int number = shared.dq_number[warpgroup];
    if (number == kNoShare) return;
    tma_reduce_add_1d(problem.dq_sums + static_cast<std::int64_t>(number) * S::kShareFloats,
                      shared.dq[warpgroup], sizeof(shared.dq[0]));
    tma_store_commit_group();
    tma_store_wait_group_read<0>();
    shared.dq_empty[warpgroup].arrive();
  }
}

/// A warpgroup's loop over the queries of its tile: dk, without the scale, and dv of its keys, and shares of
/// dq.
template <class S>
struct FusedMainloop {
  static constexpr int kBoth = 1 + S::kMathWarpgroups;  ///< named barrier of all math warpgroups

  FusedShared<S>& shared;
  const BackwardProblem& problem;
  const DkvTile& tile;
  const int own, warpgroup, thread;
  PipelineState<S::kStages>& state;
  int& done;  ///< steps so far
  const std::uint64_t k = smem_descriptor(shared.own[own][0][warpgroup]),
                      v = smem_descriptor(shared.own[own][1][warpgroup]);
  const int first = tile.first + warpgroup * kRows;
  int seen =
      start() -
      S::kStreamedRows;  ///< last key seen by the first query of the previous step, relative to `first`
  int number = 0;        ///< of that step's share of dq

  /// `seen` of a head's first block, and after its last.
  __device__ inline int start() const {
    return max(first - warpgroup * kRows - problem.offset, 0) / S::kStreamedRows * S::kStreamedRows +
           problem.offset - first;
  }
  __device__ inline int end() const {
    if constexpr (S::kCapped)
      return query_blocks<S>(problem, first - warpgroup * kRows) * S::kStreamedRows + problem.offset - first;
    else
      return (problem.queries + S::kStreamedRows - 1) / S::kStreamedRows * S::kStreamedRows + problem.offset -
             first;
  }

  /// Returns the stage of the previous step.
  __device__ inline int held() const { return (state.stage == 0 ? S::kStages : state.stage) - 1; }

  /// s = k q^T of the block in a stage.
  __device__ inline void begin_scores(float (&s)[S::kScores], int stage) {
    wgmma_fence();
    multiply_heads<S::kHead>(s, k, smem_descriptor(shared.streamed[0][0]) + stage * S::kStageStep);
    wgmma_commit_group();
  }

  /// dp = v dout^T of the i-th 64 queries of the block in a stage.
  __device__ inline void begin_gradients(float (&dp)[32], int stage, int i) {
    wgmma_fence();
    multiply_heads<S::kHead>(
        dp, v, smem_descriptor(shared.streamed[0][1]) + stage * S::kStageStep + i * (kRowsBytes / 16));
    wgmma_commit_group();
  }

  /// dq = the step's share of this warpgroup's square.
  __device__ inline void begin_share(float (&dq)[S::kShareColumns / 2]) {
    const int square = S::kSquares == 2 ? warpgroup : 0;
    const int columns = S::kSquares == 2 ? 0 : warpgroup * (S::kHead == 128 ? kRowsBytes : 64) / 16;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::kMathWarpgroups * kRows / kWgmmaKBf16; ++step) {
      const int of = step / (kRows / kWgmmaKBf16), within = step % (kRows / kWgmmaKBf16);
      wgmma_bf16<true, true>(
          dq,
          mn_major_descriptor(shared.ds[0][of][0], kRowsBytes) +
              ((done + 1) % 2 * S::kMathWarpgroups * S::kSquares + square) * (kRowsBytes / 16) +
              within * kMnMajorStep,
          mn_major_descriptor(shared.own[own][0][of][0], kRowsBytes) + columns + within * kMnMajorStep,
          step > 0);
    }
    wgmma_commit_group();
  }

  /// Hands over the share of the previous step.
  __device__ inline void leave_share(const float (&dq)[S::kShareColumns / 2]) {
    shared.offer_share(warpgroup, thread, done - 1, number, [&](float* to) {
#pragma unroll
      for (int i = 0; i < S::kShareColumns / 8; ++i)
        reinterpret_cast<float4*>(to)[i * kWarpgroup + thread] =
            make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    });
  }

  /// Finishes the share of the previous step, and processes one block of queries.
  __device__ inline void step(float (&dk)[S::kOuts], float (&dv)[S::kOuts]) {
    float s[S::kScores], dp[32], dq[S::kShareColumns / 2];
    named_barrier_sync(kBoth, S::kMathWarpgroups * kWarpgroup);
    begin_share(dq);
    shared.full[state.stage].wait(state.parity);
    begin_scores(s, state.stage);
    wgmma_wait_group<1>(dq);  // and the other wgmmas of the previous step
    if (seen >= start()) {
      release(shared.empty[held()]);
      leave_share(dq);
    }
    const int stage = state.stage;
    state.next();
    seen += S::kStreamedRows;
    if (seen >= end()) {
      number += problem.of_head * S::kShares - 2 * ((end() - start()) / S::kStreamedRows);
      seen = start();
    }
    number += 2;
    begin_gradients(dp, stage, 0);
    wgmma_wait_group<1>(s);
    const int lane = opaque(thread);
    if constexpr (S::kCapped) cuda::apply_softcap(s, problem.tanh_exponent);
    exponentiate(s, shared.values.of[stage][0][0], problem.scale_log2, lane);
    const int last = problem.keys - 1 - first;
    if (min(seen, last) < kRows - 1) mask_queries(s, seen, last, lane);
    if constexpr (S::kCapped)
      if (seen + S::kStreamedRows > problem.window) mask_queries_after(s, seen, problem.window, lane);
    std::uint32_t p_words[S::kScores / 2], ds_words[S::kSquares][16];
    round_to_operand(p_words, s);
    wgmma_fence();
    multiply_rows(dv, p_words,
                  mn_major_descriptor(shared.streamed[0][1], S::kStreamedBytes) + stage * S::kStageStep);
    wgmma_commit_group();
    wgmma_wait_group<1>(dp);
    const int writer = opaque(thread);
    const int buffer = done++ % 2;
    // One 64 queries after the other, because registers do not suffice for all.
#pragma unroll
    for (int i = 0; i < S::kSquares; ++i) {
      const auto& values = shared.values.of[stage][i];
      if constexpr (S::kCapped)
        differentiate_capped(part(s, i), dp, values[0], values[1], problem.inverse_cap_log2, writer);
      else
        differentiate(part(s, i), dp, values[1], writer);
      if constexpr (S::kSquares == 1) {  // the registers of p_words are needed
        warpgroup_fence_operand(s);
        wgmma_wait_group(dv);
      }
      round_to_operand(ds_words[i], part(s, i));
      write_bf16_box<64>(shared.ds[buffer][warpgroup][i], part(s, i), 0, writer);
      if (i + 1 < S::kSquares) {
        warpgroup_fence_operand(s);
        begin_gradients(dp, stage, i + 1);
        wgmma_wait_group(dp);
      }
    }
    fence_proxy_async();
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::kSquares; ++i)
      multiply_rows(dk, ds_words[i],
                    mn_major_descriptor(shared.streamed[0][0], S::kStreamedBytes) + stage * S::kStageStep +
                        i * (kRowsBytes / 16));
    wgmma_commit_group();
  }

  /// Returns the accumulators of 64 of the columns.
  __device__ static float (&part(float (&x)[S::kScores], int i))[32] {
    return reinterpret_cast<float(&)[32]>(x[32 * i]);
  }

  __device__ inline void run(float (&dk)[S::kOuts], float (&dv)[S::kOuts]) {
    const int steps = tile.blocks * tile.heads;
    if (steps == 0) return;
    number = share_of_dq<S>(problem, tile.sequence, tile.first_head, tile.first_block, warpgroup) - 2;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) step(dk, dv);
    named_barrier_sync(kBoth, S::kMathWarpgroups * kWarpgroup);
    float dq[S::kShareColumns / 2];
    begin_share(dq);
    wgmma_wait_group(dq);
    warpgroup_fence_operand(dk);
    warpgroup_fence_operand(dv);
    release(shared.empty[held()]);
    leave_share(dq);
    named_barrier_sync(kBoth,
                       S::kMathWarpgroups * kWarpgroup);  // the other warpgroup's dq has read these keys
  }
};

template <class S>
__device__ inline void consume(FusedShared<S>& shared, const BackwardMaps& maps,
                               const BackwardProblem& problem, int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  PipelineState<S::kStages> streamed;
  int done = 0;
  for_tiles<S>(shared, maps, problem, warpgroup, thread,
               [&](const DkvTile& tile, int own, float(&dk)[S::kOuts], float(&dv)[S::kOuts]) {
                 FusedMainloop<S>{shared, problem, tile, own, warpgroup, thread, streamed, done}.run(dk, dv);
               });
  shared.offer_share(warpgroup, thread, done, kNoShare, [](float*) {});
}

template <class S>
__global__ __launch_bounds__(S::kThreads, 1) void attend_backward(const __grid_constant__ BackwardMaps maps,
                                                                  const BackwardProblem problem) {
  wait_for_work_before();
  run_warpgroups<S, FusedShared<S>>(maps, problem);
}

}  // namespace precbench::hopper
