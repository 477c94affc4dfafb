// Hopper attention backward, dk and dv: dv = p^T dout, dk = scale ds^T q with p = exp(scale q k^T - lse),
// dp = dout v^T, ds = p (dp - delta).
//
// A block computes one tile of dk and dv after another: 64 keys of a KV head per math warpgroup, whose k and
// v stay in shared memory, against blocks of queries of all heads of the group that see them. Everything is
// transposed: keys are rows.
//
//                 global memory / L2
//                        |  TMA
//                        v
//   producer   k, v of the tile      [ q, dout, lse, delta ][ q, dout, lse, delta ] ... ring in shared mem.
//   1 thread                                |  full    ^  empty: all math warpgroups have read the stage
//                                           v          |
//   warpgroup    | k q^T | v dout^T | p^T dout |         | ds^T q ||  k q^T of the next block ...
//                         p = exp             |  ds     |      in registers: p and ds are A operands
//
// The wgmmas of a step are waited for after the next ones have been issued, and while one warpgroup computes
// p and ds the other uses the tensor cores. Every sum has one writer and a fixed order.
//
// Few tiles would leave multiprocessors idle. Then the group's heads are split into parts, whose dk and dv
// are written in FP32 and added in order by another kernel.
#pragma once

#include "kernels/cuda/attention/hopper_bwd_common.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::hopper {

/// Blocks are of 64 queries, whose row values are together. With `kAheadOf`, the scores of the next step are
/// issued before those of this one are used; that needs registers that a wide head does not leave.
template <int kHead, int kStages, int kBuffers, bool kAheadOf, bool kCapped = false>
struct DkvShape : BwdShape<kHead, 64, kStages, kBuffers, true, kCapped> {
  static constexpr bool kAhead = kAheadOf;
};

/// Row values of each block's queries. They come in groups of 64: a block of 32 loads the group that contains it.
template <class S>
struct RowValues {
  float of[S::kStages][S::kStreamedRows <= 64 ? 1 : S::kStreamedRows / 64][2][64];  ///< lse, delta
};
/// Own: k, v, then dk, dv. Streamed: q, dout.
template <class S>
using DkvShared = BwdShared<S, RowValues<S>>;

/// Returns the number of blocks of queries up to the last that sees a key of the tile at `first`.
template <class S>
__device__ inline int query_blocks(const BackwardProblem& problem, int first) {
  int queries = opaque(problem.queries);
  if constexpr (S::kCapped)  // the last key is seen by as many queries as the window has keys
    queries = min(queries, max(first + S::kOwn - 1 - opaque(problem.offset) + opaque(problem.window), 0));
  return (queries + S::kStreamedRows - 1) / S::kStreamedRows;
}

struct DkvTile {
  int sequence, kv_head, part, first;
  int first_head, heads;    ///< heads of its loop
  int first_block, blocks;  ///< query blocks of each

  /// Returns false if this block has no tile in the round.
  template <class S>
  __device__ bool find(const BackwardProblem& problem, int round) {
    const int index = tile_of_round(round, opaque(static_cast<int>(gridDim.x)));
    if (index >= problem.tiles) return false;
    const int of_row = opaque(problem.of_row), parts = opaque(problem.parts),
              kv_heads = opaque(problem.kv_heads);
    first = index / of_row * S::kOwn;
    part = index % of_row % parts;
    kv_head = index % of_row / parts % kv_heads;
    sequence = index % of_row / parts / kv_heads;
    heads = opaque(problem.heads_of_part);
    first_head = kv_head * opaque(problem.group) + part * heads;
    first_block = max(first - opaque(problem.offset), 0) / S::kStreamedRows;
    blocks = max(query_blocks<S>(problem, first) - first_block, 0);
    return true;
  }
};

template <class S>
__device__ void produce(DkvShared<S>& shared, const BackwardMaps& maps, const BackwardProblem& problem) {
  PipelineState<S::kBuffers> own;
  PipelineState<S::kStages> streamed;
  DkvTile tile{};
  for (int round = 0; tile.find<S>(problem, round); ++round) {
    shared.load_own(maps, tile.sequence, tile.first, tile.kv_head * S::kHead, own);
#pragma unroll 1
    for (int head = tile.first_head; head < tile.first_head + tile.heads; ++head) {
      const int first_values = (tile.sequence * problem.heads + head) * problem.of_head;
#pragma unroll 1
      for (int block = tile.first_block; block < tile.first_block + tile.blocks; ++block) {
        auto& to = shared.values.of[streamed.stage];
        const auto load_values = [&](int i, Barrier& barrier) {
          if (i == 0)
            tma_load_1d(to,
                        problem.values +
                            static_cast<std::int64_t>(first_values + block * S::kStreamedRows / 64) * 128,
                        sizeof(to), barrier);
        };
        shared.load_streamed(maps, tile.sequence, block * S::kStreamedRows, head * S::kHead, sizeof(to),
                             load_values, streamed);
      }
    }
  }
}

/// Rows are keys, columns queries: sets the elements of keys that a query does not see. `first_seen` is the
/// last key that the block's first query sees, `last` the last existing key, both relative to the first of
/// these keys.
template <int kCount>
__device__ inline void mask_queries(float (&x)[kCount], int first_seen, int last, int thread) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(thread) + 8 * half;
    const int first = row > last ? 2 * kCount : row - first_seen - thread % 4 * 2;  // query that sees the row
    set_columns(x, half, 0, [=](int column) { return column < first; });
  }
}

/// As mask_queries, for queries whose window no longer reaches a key.
template <int kCount>
__device__ inline void mask_queries_after(float (&x)[kCount], int first_seen, int window, int thread) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int end = row_of(thread) + 8 * half - first_seen + window - thread % 4 * 2;
    set_columns(x, half, 0, [=](int column) { return column >= end; });
  }
}

/// Rows are keys: replaces a block's scores by probabilities. `lse`, for powers of two, is that of its first
/// 64 queries; a thread's columns are 8 g + 2 (thread % 4) + i, whose values are adjacent.
template <int kCount>
__device__ inline void exponentiate(float (&s)[kCount], const float* lse, float scale_log2, int thread) {
#pragma unroll
  for (int i = 0; i < kCount; i += 8) {
    const float4 of = reinterpret_cast<const float4*>(lse)[i / 32 * 32 + thread % 4 * 4 + i % 32 / 8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      s[i + 2 * half] = cuda::exp2_approx(s[i + 2 * half] * scale_log2 - of.x);
      s[i + 2 * half + 1] = cuda::exp2_approx(s[i + 2 * half + 1] * scale_log2 - of.y);
      s[i + 4 + 2 * half] = cuda::exp2_approx(s[i + 4 + 2 * half] * scale_log2 - of.z);
      s[i + 5 + 2 * half] = cuda::exp2_approx(s[i + 5 + 2 * half] * scale_log2 - of.w);
    }
  }
}

/// Replaces p by ds.
template <int kCount>
__device__ inline void differentiate(float (&p)[kCount], const float (&dp)[kCount], const float* delta,
                                     int thread) {
#pragma unroll
  for (int i = 0; i < kCount; i += 8) {
    const float4 of = reinterpret_cast<const float4*>(delta)[i / 32 * 32 + thread % 4 * 4 + i % 32 / 8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      p[i + 2 * half] *= dp[i + 2 * half] - of.x;
      p[i + 2 * half + 1] *= dp[i + 2 * half + 1] - of.y;
      p[i + 4 + 2 * half] *= dp[i + 4 + 2 * half] - of.z;
      p[i + 5 + 2 * half] *= dp[i + 5 + 2 * half] - of.w;
    }
  }
}

/// Replaces p by ds with soft-capped scores, whose derivative is a factor of ds. `lse`: as in exponentiate().
template <int kCount>
__device__ inline void differentiate_capped(float (&p)[kCount], const float (&dp)[kCount], const float* lse,
                                            const float* delta, float inverse_cap_log2, int thread) {
#pragma unroll
  for (int i = 0; i < kCount; i += 8) {
    const int at = i / 32 * 32 + thread % 4 * 4 + i % 32 / 8;
    const float4 delta4 = reinterpret_cast<const float4*>(delta)[at];
    const float4 lse4 = reinterpret_cast<const float4*>(lse)[at];
    const float deltas[] = {delta4.x, delta4.y, delta4.z, delta4.w};
    const float lses[] = {lse4.x, lse4.y, lse4.z, lse4.w};
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        const int j = i + column / 2 * 4 + 2 * half + column % 2;
        const float slope = cuda::tanh_slope_of_probability(p[j], lses[column], inverse_cap_log2);
        p[j] *= (dp[j] - deltas[column]) * slope;
      }
  }
}

/// A warpgroup's loop over the queries of its tile: dk, without the scale, and dv of its keys.
template <class S>
struct DkvMainloop {
  DkvShared<S>& shared;
  const BackwardProblem& problem;
  const DkvTile& tile;
  const int own, warpgroup, thread;
  PipelineState<S::kStages>& state;
  const std::uint64_t k = smem_descriptor(shared.own[own][0][warpgroup]),
                      v = smem_descriptor(shared.own[own][1][warpgroup]);
  const int first = tile.first + warpgroup * kRows, last = problem.keys - 1 - first;
  int block = 0;
  int held = -1;  ///< the stage whose last wgmma is in flight

  /// p = k q^T of the block in a stage.
  __device__ inline void begin_scores(float (&p)[32], int stage) {
    wgmma_fence();
    multiply_heads<S::kHead>(p, k, smem_descriptor(shared.streamed[0][0]) + stage * S::kStageStep);
    wgmma_commit_group();
  }

  __device__ inline void release_held() {
    if (held >= 0) release(shared.empty[held]);
  }

  /// Processes one block of queries; `more`: there is another. With kAhead, `next` holds its scores, and then
  /// the next block's.
  __device__ inline void step(float (&next)[32], bool more, float (&dk)[S::kOuts], float (&dv)[S::kOuts]) {
    constexpr int kNewer = S::kAhead ? 2 : 1;  // groups issued after the one that is waited for
    const int stage = state.stage;
    const unsigned parity = state.parity;
    state.next();
    // Last key that the block's first query sees, relative to this warpgroup's first.
    const int first_seen = (tile.first_block + block) * S::kStreamedRows + problem.offset - first;
    if (++block == tile.blocks) block = 0;
    float p[32], dp[32];
    if constexpr (S::kAhead) {
#pragma unroll
      for (int i = 0; i < 32; ++i) p[i] = next[i];
    } else {
      shared.full[stage].wait(parity);
      if (first_seen + S::kStreamedRows - 1 < 0) return skip(stage, dk);
      begin_scores(p, stage);
    }
    wgmma_fence();
    multiply_heads<S::kHead>(dp, v, smem_descriptor(shared.streamed[0][1]) + stage * S::kStageStep);
    wgmma_commit_group();
    if constexpr (S::kAhead) {  // after the last step once more this one's: fewer code paths are faster
      const int ahead = more ? state.stage : stage;
      shared.full[ahead].wait(more ? state.parity : parity);
      begin_scores(next, ahead);
    }
    if constexpr (!S::kAhead) {
      wgmma_wait_group<kNewer>(p);  // and the last of the previous step
      release_held();
    }
    const auto& values = shared.values.of[stage][0];
    if constexpr (S::kCapped) cuda::apply_softcap(p, problem.tanh_exponent);
    exponentiate(p, values[0], problem.scale_log2, thread);
    if (min(first_seen, last) < kRows - 1) mask_queries(p, first_seen, last, thread);
    if constexpr (S::kCapped)
      if (first_seen + S::kStreamedRows > problem.window)
        mask_queries_after(p, first_seen, problem.window, thread);
    if constexpr (S::kAhead) {
      warpgroup_fence_operand(p);
      wgmma_wait_group<kNewer>(dk);  // of the previous step
      release_held();
    }
    std::uint32_t words[16];  // of p, then of ds
    round_to_operand(words, p);
    wgmma_fence();
    multiply_rows(dv, words,
                  mn_major_descriptor(shared.streamed[0][1], S::kStreamedBytes) + stage * S::kStageStep);
    wgmma_commit_group();
    wgmma_wait_group<kNewer>(dp);
    if constexpr (S::kCapped)
      differentiate_capped(p, dp, values[0], values[1], problem.inverse_cap_log2, thread);
    else
      differentiate(p, dp, values[1], thread);
    warpgroup_fence_operand(p);
    wgmma_wait_group(dv);
    if (S::kAhead) warpgroup_fence_operand(next);
    round_to_operand(words, p);
    wgmma_fence();
    multiply_rows(dk, words,
                  mn_major_descriptor(shared.streamed[0][0], S::kStreamedBytes) + stage * S::kStageStep);
    wgmma_commit_group();
    held = stage;
  }

  /// Skips a block whose queries see none of the keys.
  __device__ inline void skip(int stage, float (&dk)[S::kOuts]) {
    wgmma_wait_group(dk);
    release_held();
    held = -1;
    release(shared.empty[stage]);
  }

  __device__ inline void run(float (&dk)[S::kOuts], float (&dv)[S::kOuts]) {
    float next[32];
    const int steps = tile.blocks * tile.heads;
    if (S::kAhead && steps > 0) {
      shared.full[state.stage].wait(state.parity);
      begin_scores(next, state.stage);
      wgmma_wait_group(next);
    }
#pragma unroll 1
    for (int i = 1; i <= steps; ++i) step(next, i < steps, dk, dv);
    wgmma_wait_group(dk);
    release_held();
  }
};

/// Destination of a part's dk and dv in FP32: the row of the first of a warpgroup's keys and the KV head.
struct PieceRows {
  float* dk;
  std::int64_t count;  ///< from dk to dv
  std::int64_t pitch;
  int keys;  ///< that exist
};
template <class S>
__device__ inline PieceRows piece_rows(const BackwardProblem& problem, const DkvTile& tile, int first) {
  const std::int64_t pitch = static_cast<std::int64_t>(opaque(problem.kv_heads)) * S::kHead;
  const std::int64_t sequences = problem.tiles / (problem.tile_rows * problem.parts * problem.kv_heads);
  const std::int64_t count = sequences * problem.keys * pitch;
  float* dk = problem.pieces + tile.part * 2 * count +
              (static_cast<std::int64_t>(tile.sequence) * problem.keys + first) * pitch +
              tile.kv_head * S::kHead;
  return {.dk = dk, .count = count, .pitch = pitch, .keys = problem.keys - first};
}

/// Writes a part's dk or dv, in FP32, to `to`.
template <class S>
__device__ inline void store_piece(float* to, int keys, std::int64_t pitch, const float (&x)[S::kOuts],
                                   int thread) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(thread) + 8 * half;
    if (row >= keys) continue;
#pragma unroll
    for (int g = 0; g < S::kHead / 8; ++g)
      *reinterpret_cast<float2*>(to + row * pitch + 8 * g + thread % 4 * 2) =
          make_float2(x[4 * g + 2 * half], x[4 * g + 2 * half + 1]);
  }
}

/// Writes both gradients of a warpgroup's rows.
template <class S>
__device__ inline void store(DkvShared<S>& shared, const BackwardMaps& maps, const BackwardProblem& problem,
                             const DkvTile& tile, int own, int warpgroup, int thread,
                             const float (&dk)[S::kOuts], const float (&dv)[S::kOuts]) {
  const int first = tile.first + warpgroup * kRows;
  if (problem.parts > 1) {
    const PieceRows piece = piece_rows<S>(problem, tile, first);
    store_piece<S>(piece.dk, piece.keys, piece.pitch, dk, thread);
    store_piece<S>(piece.dk + piece.count, piece.keys, piece.pitch, dv, thread);
    named_barrier_sync(1 + warpgroup, kWarpgroup);  // all threads have read k and v
    return;
  }
  write_head(shared.own[own][0][warpgroup], dk, thread);
  write_head(shared.own[own][1][warpgroup], dv, thread);
  fence_proxy_async();
  named_barrier_sync(1 + warpgroup, kWarpgroup);
  if (thread != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    store_head(maps.out[i], tile.sequence, first, tile.kv_head * S::kHead, shared.own[own][i][warpgroup]);
  tma_store_commit_group();
}

/// Runs all tiles of a math warpgroup. walk(tile, own, dk, dv) computes the sums of one, whose keys are in
/// buffer `own`.
template <class S, class Mainloop>
__device__ inline void for_tiles(DkvShared<S>& shared, const BackwardMaps& maps,
                                 const BackwardProblem& problem, int warpgroup, int thread,
                                 Mainloop&& mainloop) {
  PipelineState<S::kBuffers> own;
  DkvTile tile{};
  for (int round = 0; tile.find<S>(problem, round); ++round) {
    float dk[S::kOuts], dv[S::kOuts];
#pragma unroll
    for (int i = 0; i < S::kOuts; ++i) dk[i] = dv[i] = 0;
    shared.await_own(own, round, thread);
    mainloop(tile, own.stage, dk, dv);
    tile.find<S>(problem, opaque(round));  // recomputed: keeping it would take registers from the wgmmas
#pragma unroll
    for (float& x : dk) x *= problem.scale;
    store<S>(shared, maps, problem, tile, own.stage, opaque(warpgroup), opaque(thread), dk, dv);
    if (thread == 0) shared.release_own(own);
    own.next();
  }
  if (thread == 0) tma_store_wait_group_read<0>();
}

template <class S>
__device__ inline void consume(DkvShared<S>& shared, const BackwardMaps& maps, const BackwardProblem& problem,
                               int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  PipelineState<S::kStages> streamed;
  for_tiles<S>(shared, maps, problem, warpgroup, thread,
               [&](const DkvTile& tile, int own, float(&dk)[S::kOuts], float(&dv)[S::kOuts]) {
                 DkvMainloop<S>{shared, problem, tile, own, warpgroup, thread, streamed}.run(dk, dv);
               });
}

template <class S>
__global__ __launch_bounds__(S::kThreads,
                             1) void attend_backward_dkv(const __grid_constant__ BackwardMaps maps,
                                                         const BackwardProblem problem) {
  wait_for_work_before();
  run_warpgroups<S, DkvShared<S>>(maps, problem);
}

}  // namespace precbench::hopper
