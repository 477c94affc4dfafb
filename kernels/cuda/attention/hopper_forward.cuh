// Hopper attention forward: out = softmax(q k^T / sqrt(head width)) v, causal, and lse, BF16 with FP32 sums.
// The schedule is FlashAttention-3's (Shah et al. 2024, arXiv:2407.08608).
//
// Blocks are persistent. Each computes one tile of `out` after another: the queries of one head, 64 per math
// warpgroup, against the keys that they see, one block of keys at a time, the last block first.
//
//                 global memory / L2
//                        |  TMA: boxes of q, k and v
//                        v
//   producer   q [0][1]    k [0][1]    v [0][1]           in shared memory; q of the next tile is prefetched
//   1 thread       |  full: bytes have arrived      ^  empty: all math warpgroups have read it
//                  v                                |
//   warpgroup 1  | q k(n) | p v(n+1) |  softmax of n           | q k(n-1) | p v(n) |  softmax of n-1    ...
//   warpgroup 2    softmax of n+1    | q k(n) | p v(n+1) |  softmax of n            | q k(n-1) | p v(n) ...
//                                     ---- tensor core time ---->
//
// So the tensor cores run one warpgroup's GEMMs while another computes exponentials; named barriers alternate
// between them (ping-pong). Within a warpgroup the scores of the next block are issued before the GEMM with
// the values of this one, and the softmax of the former overlaps with the latter.
//
// The diagram shows two math warpgroups and two stages of k and v; a head width of 64 has three of each. A head width of 256 has
// one buffer of q: the next tile's q is loaded when out has been stored.
//
// Scores, probabilities and out stay in registers. The accumulators of q k^T, rounded to BF16, are the A
// operand of p v: the register layouts match. A tile's out is written through the shared memory of its q.
//
// Soft-capped scores are replaced by their hyperbolic tangents before the mask; softmax multiplies them by the cap.
//
// Tiles are scheduled longest first, with every second round reversed, to balance the multiprocessors.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/hopper_tiles.cuh"
#include "kernels/cuda/attention/softcap.cuh"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/vector.cuh"

namespace precbench::hopper {

/// Compile-time shape of a forward kernel.
template <int kHeadOf, int kWarpgroupsOf, int kKeysOf, int kStagesOf, bool kCappedOf = false>
struct ForwardShape {
  static constexpr bool kCapped = kCappedOf;             ///< scores are soft-capped
  static constexpr int kHead = kHeadOf;                  ///< head width
  static constexpr int kMathWarpgroups = kWarpgroupsOf;  ///< 64 queries each
  static constexpr int kKeys = kKeysOf;                  ///< per block
  static constexpr int kStages = kStagesOf;              ///< blocks of k, and of v, in shared memory

  static constexpr int kQueries = kMathWarpgroups * kRows;
  static constexpr int kThreads = (kMathWarpgroups + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = kMathWarpgroups == 2 ? 40 : 32;
  static constexpr int kMathRegisters = kMathWarpgroups == 2 ? 232 : 160;
  static constexpr int kQueryBuffers = kHead <= 128 ? 2 : 1;    ///< tiles' q in shared memory
  static constexpr int kBoxes = kHead / kBoxColumns;            ///< side by side in a head
  static constexpr int kKeyBytes = kKeys * kTileRowBytes;       ///< of a box of k or v
  static constexpr int kScores = kKeys / 2, kOuts = kHead / 2;  ///< accumulators per thread
  static_assert(kHead % kBoxColumns == 0 && kKeys % kWgmmaKBf16 == 0 &&
                (kMathWarpgroups == 2 || kMathWarpgroups == 3));
};

template <class S>
struct alignas(1024) ForwardShared {
  std::uint8_t q[S::kQueryBuffers][S::kMathWarpgroups][S::kBoxes][kRowsBytes];  ///< and out
  std::uint8_t k[S::kStages][S::kBoxes][S::kKeyBytes];
  std::uint8_t v[S::kStages][S::kBoxes][S::kKeyBytes];
  Barrier q_full[S::kQueryBuffers], q_empty[S::kQueryBuffers];
  Barrier k_full[S::kStages], k_empty[S::kStages];
  Barrier v_full[S::kStages], v_empty[S::kStages];

  __device__ void init() {
    init_ring(q_full, q_empty, S::kQueryBuffers, S::kMathWarpgroups);
    init_ring(k_full, k_empty, S::kStages, S::kMathWarpgroups * 4);
    init_ring(v_full, v_empty, S::kStages, S::kMathWarpgroups * 4);
  }
};

/// q and out in boxes of 64 rows, k and v of kKeys, all of 64 columns; a matrix is a sequence.
struct ForwardMaps {
  CUtensorMap q, k, v, out;
};

struct ForwardProblem {
  int queries, keys, offset;  ///< per sequence; query t sees keys up to t + offset
  int heads, kv_heads;
  int tile_rows, tiles;  ///< tiles per head, and in total
  float scale_log2;      ///< of the scores, or of their hyperbolic tangents, for powers of two
  float* lse;            ///< [sequence][head][queries]
  float tanh_exponent;   ///< of cuda::tanh_of, with soft-capped scores
};
/// The problem of soft-capped scores, the only ones with a window. A struct of its own leaves the code of the others as it was.
struct CappedForwardProblem : ForwardProblem {
  int window;  ///< keys that a query sees at most, its own included
};
template <class S>
using ForwardProblemOf = std::conditional_t<S::kCapped, CappedForwardProblem, ForwardProblem>;

/// Position of a tile.
struct ForwardTile {
  int sequence, head, first_query;
  int blocks;  ///< key blocks that its last query sees; 0: none

  /// Returns the tile of a block in a round; `blocks` is -1 if it has none.
  template <class S>
  __device__ static ForwardTile at(const ForwardProblem& problem, int round) {
    const int index = tile_of_round(round);
    ForwardTile tile{};
    tile.blocks = -1;
    if (index >= problem.tiles) return tile;
    const int of_row = problem.tiles / problem.tile_rows;  // heads of all sequences
    tile.first_query = (problem.tile_rows - 1 - index / of_row) * S::kQueries;
    tile.sequence = index % of_row / problem.heads;
    tile.head = index % of_row % problem.heads;
    const int last = min(tile.first_query + S::kQueries, problem.queries) - 1;
    const int seen = min(last + problem.offset + 1, problem.keys);
    tile.blocks = (max(seen, 0) + S::kKeys - 1) / S::kKeys;
    return tile;
  }
};

/// Producer thread: issues all TMA loads.
template <class S>
__device__ void produce(ForwardShared<S>& shared, const ForwardMaps& maps,
                        const ForwardProblemOf<S>& problem) {
  PipelineState<S::kQueryBuffers> q_state;
  PipelineState<S::kStages> k_state, v_state;
  const auto load = [&](auto& boxes, const CUtensorMap& map, Barrier* full, Barrier* empty, auto& state,
                        const ForwardTile& tile, int block) {
    Barrier& barrier = full[state.stage];
    empty[state.stage].wait(state.parity ^ 1);
    barrier.arrive_expect_tx(S::kBoxes * S::kKeyBytes);
    const int column = tile.head / (problem.heads / problem.kv_heads) * S::kHead;
    load_head(boxes[state.stage], map, tile.sequence, block * S::kKeys, column, barrier);
    state.next();
  };
  for (int round = 0;; ++round) {
    const auto tile = ForwardTile::at<S>(problem, round);
    if (tile.blocks < 0) return;
    Barrier& full = shared.q_full[q_state.stage];
    shared.q_empty[q_state.stage].wait(q_state.parity ^ 1);
    full.arrive_expect_tx(sizeof(shared.q[0]));
#pragma unroll
    for (int warpgroup = 0; warpgroup < S::kMathWarpgroups; ++warpgroup)
      load_head(shared.q[q_state.stage][warpgroup], maps.q, tile.sequence,
                tile.first_query + warpgroup * kRows, tile.head * S::kHead, full);
    q_state.next();
    const auto first = first_key_block<S>(problem, tile.first_query, S::kKeys);
#pragma unroll 1
    for (int block = tile.blocks - 1; block >= first; --block) {
      load(shared.k, maps.k, shared.k_full, shared.k_empty, k_state, tile, block);
      if (block + 1 < tile.blocks)
        load(shared.v, maps.v, shared.v_full, shared.v_empty, v_state, tile, block + 1);
    }
    if (tile.blocks > 0) load(shared.v, maps.v, shared.v_full, shared.v_empty, v_state, tile, first);
  }
}

/// Online softmax state of a warpgroup's 64 queries. A thread has two row values each: of its row_of() and of
/// that + 8.
///
/// Exponentials are relative to a shift near the largest score so far. With `kLazy`, it is raised only when a
/// score exceeds it by more than kSlack: sums stay far from overflow, relative errors are the same, and the
/// exchange among threads and the rescaling of `out` are rarely needed.
template <class S>
struct OnlineSoftmax {
  static constexpr float kNone = -1e30f;  ///< the shift before any key is seen
  static constexpr float kSlack = 8;      ///< in powers of two

  float shift[2], total[2];  ///< for powers of two; the thread's part of the sum of exponentials
  float correction[2];       ///< factor on sums and out from the last raise
  bool raised;               ///< by the last block

  __device__ void begin() {
    shift[0] = shift[1] = kNone;
    total[0] = total[1] = 0;
  }

  /// Replaces scores by exponentials.
  __device__ void take(float (&s)[S::kScores], float scale_log2) {
    float most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < S::kScores; ++i) most[i % 4] = fmaxf(most[i % 4], s[i]);
    const float top[2] = {fmaxf(most[0], most[1]) * scale_log2, fmaxf(most[2], most[3]) * scale_log2};
    raised = __any_sync(~0u, fmaxf(top[0] - shift[0], top[1] - shift[1]) > kSlack);
    if (raised) raise(top);
    float sums[4] = {total[0], 0, total[1], 0};
#pragma unroll
    for (int i = 0; i < S::kScores; ++i) {
      s[i] = cuda::exp2_approx(s[i] * scale_log2 - shift[i % 4 / 2]);
      sums[i % 4] += s[i];
    }
    total[0] = sums[0] + sums[1];
    total[1] = sums[2] + sums[3];
  }

  __device__ void raise(const float (&top)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = fmaxf(shift[half], top[half]);
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      correction[half] = cuda::exp2_approx(shift[half] - now);
      total[half] *= correction[half];
      shift[half] = now;
    }
  }

  __device__ void rescale(float (&out)[S::kOuts]) const {
    if (!raised) return;
#pragma unroll
    for (int i = 0; i < S::kOuts; ++i) out[i] *= correction[i % 4 / 2];
  }
};

/// Ping-pong scheduling of the tensor cores: barrier 1 + w is warpgroup w's.
template <class S>
__device__ inline void warp_scheduler_barrier_sync(int warpgroup) {
  named_barrier_sync(1 + warpgroup, 2 * kWarpgroup);
}
template <class S>
__device__ inline void warp_scheduler_barrier_arrive(int warpgroup) {
  named_barrier_arrive(1 + (warpgroup + 1 == S::kMathWarpgroups ? 0 : warpgroup + 1), 2 * kWarpgroup);
}

/// Ring positions of a math warpgroup.
template <class S>
struct ForwardPipelineStates {
  PipelineState<S::kQueryBuffers> q;
  PipelineState<S::kStages> k, v;
  bool first = true;  ///< no tile is done yet
};

/// With two buffers of q, releases that of the previous tile once its out has been stored from it, so that the next q may be
/// loaded.
template <class S>
__device__ inline void release_q(ForwardShared<S>& shared, const ForwardPipelineStates<S>& states,
                                 int thread) {
  if constexpr (S::kQueryBuffers == 2) {
    if (thread != 0 || states.first) return;
    tma_store_wait_group_read<0>();
    shared.q_empty[states.q.stage ^ 1].arrive();
  }
}

/// Computes a warpgroup's sums of one tile, over its blocks of keys (at least one).
template <class S>
__device__ inline void mainloop(ForwardShared<S>& shared, const ForwardProblemOf<S>& problem,
                                const ForwardTile& tile, int warpgroup, int thread,
                                ForwardPipelineStates<S>& states, OnlineSoftmax<S>& softmax,
                                float (&out)[S::kOuts]) {
  const int first_query = tile.first_query + warpgroup * kRows;
  const std::uint64_t q = smem_descriptor(shared.q[states.q.stage][warpgroup]);
  const auto k_of = [&](int stage) {
    return smem_descriptor(shared.k[0]) + stage * (S::kBoxes * S::kKeyBytes / 16);
  };
  const auto v_of = [&](int stage) {
    return mn_major_descriptor(shared.v[0], S::kKeyBytes) + stage * (S::kBoxes * S::kKeyBytes / 16);
  };
  float s[S::kScores];
  std::uint32_t p[S::kScores / 2];
  const auto take = [&](int block) {
    const int first_key = block * S::kKeys;
    if constexpr (S::kCapped) cuda::apply_softcap(s, problem.tanh_exponent);
    if (first_key + S::kKeys - 1 > min(first_query + problem.offset, problem.keys - 1))
      mask_keys(s, first_query + problem.offset, problem.keys - 1, first_key, thread, -INFINITY);
    if constexpr (S::kCapped) {
      const int first_seen = first_query + problem.offset - problem.window + 1;
      if (first_key < first_seen + kRows - 1) mask_keys_before(s, first_seen, first_key, thread, -INFINITY);
    }
    softmax.take(s, problem.scale_log2);
  };
  int block = tile.blocks - 1;
  const auto first_block = first_key_block<S>(problem, tile.first_query, S::kKeys);
  // Keys after all of these queries are needed only by the other warpgroups; the turns must still alternate.
  const int last_seen = first_query < problem.queries ? first_query + problem.offset + kRows - 1 : 0;
  for (; block > first_block && block * S::kKeys > last_seen; --block) {
    warp_scheduler_barrier_sync<S>(warpgroup);
    warp_scheduler_barrier_arrive<S>(warpgroup);
    shared.k_full[states.k.stage].wait(states.k.parity);
    release(shared.k_empty[states.k.stage]);
    states.k.next();
    shared.v_full[states.v.stage].wait(states.v.parity);
    release(shared.v_empty[states.v.stage]);
    states.v.next();
  }
  shared.k_full[states.k.stage].wait(states.k.parity);
  wgmma_fence();
  multiply_heads<S::kHead>(s, q, k_of(states.k.stage));
  wgmma_commit_group();
  wgmma_wait_group(s);
  release(shared.k_empty[states.k.stage]);
  states.k.next();
  take(block);
  round_to_operand(p, s);
  release_q<S>(shared, states, thread);

  if (block > first_block) shared.k_full[states.k.stage].wait(states.k.parity);
  while (--block >= first_block) {
    warp_scheduler_barrier_sync<S>(warpgroup);
    wgmma_fence();
    multiply_heads<S::kHead>(s, q, k_of(states.k.stage));
    wgmma_commit_group();
    shared.v_full[states.v.stage].wait(states.v.parity);
    wgmma_fence();
    multiply_rows(out, p, v_of(states.v.stage));
    wgmma_commit_group();
    warp_scheduler_barrier_arrive<S>(warpgroup);
    wgmma_wait_group<1>(s);
    release(shared.k_empty[states.k.stage]);
    states.k.next();
    take(block);
    warpgroup_fence_operand(s);
    // Waiting here for the next keys keeps the compiler from moving the exponentials behind the end of the
    // wgmma.
    if (block > first_block) shared.k_full[states.k.stage].wait(states.k.parity);
    wgmma_wait_group(out);
    release(shared.v_empty[states.v.stage]);
    states.v.next();
    softmax.rescale(out);
    round_to_operand(p, s);
  }

  shared.v_full[states.v.stage].wait(states.v.parity);
  wgmma_fence();
  multiply_rows(out, p, v_of(states.v.stage));
  wgmma_commit_group();
  wgmma_wait_group(out);
  release(shared.v_empty[states.v.stage]);
  states.v.next();
}

/// Writes a warpgroup's out and lse; its first thread issues the copies.
template <class S>
__device__ inline void store(ForwardShared<S>& shared, const ForwardMaps& maps,
                             const ForwardProblemOf<S>& problem, const ForwardTile& tile, int warpgroup,
                             int thread, int stage, OnlineSoftmax<S>& softmax, float (&out)[S::kOuts]) {
  const int first_query = tile.first_query + warpgroup * kRows;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = softmax.total[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    factor[half] = total == 0 ? 0 : 1 / total;  // 0 for a query that sees no key
    const int query = first_query + row_of(thread) + 8 * half;
    constexpr float kLn2 = 0.693147180559945f;
    if (thread % 4 == 0 && query < problem.queries)
      problem.lse[(static_cast<std::int64_t>(tile.sequence) * problem.heads + tile.head) * problem.queries +
                  query] = total == 0 ? -INFINITY : softmax.shift[half] * kLn2 + logf(total);
  }
#pragma unroll
  for (int i = 0; i < S::kOuts; ++i) out[i] *= factor[i % 4 / 2];
  auto& boxes = shared.q[stage][warpgroup];
  write_head(boxes, out, thread);
  fence_proxy_async();
  named_barrier_sync(1 + S::kMathWarpgroups + warpgroup, kWarpgroup);
  if (thread != 0) return;
  store_head(maps.out, tile.sequence, first_query, tile.head * S::kHead, boxes);
  tma_store_commit_group();
  if constexpr (S::kQueryBuffers == 1) {
    tma_store_wait_group_read<0>();
    shared.q_empty[0].arrive();
  }
}

/// Runs all tiles of a math warpgroup.
template <class S>
__device__ inline void consume(ForwardShared<S>& shared, const ForwardMaps& maps,
                               const ForwardProblemOf<S>& problem, int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  ForwardPipelineStates<S> states;
  if (warpgroup == S::kMathWarpgroups - 1) warp_scheduler_barrier_arrive<S>(warpgroup);
  for (int round = 0;; ++round) {
    const auto tile = ForwardTile::at<S>(problem, round);
    if (tile.blocks < 0) break;
    OnlineSoftmax<S> softmax;
    softmax.begin();
    float out[S::kOuts];
#pragma unroll
    for (float& x : out) x = 0;
    shared.q_full[states.q.stage].wait(states.q.parity);
    if (tile.blocks > 0)
      mainloop<S>(shared, problem, tile, warpgroup, thread, states, softmax, out);
    else
      release_q<S>(shared, states, thread);
    store<S>(shared, maps, problem, tile, warpgroup, thread, states.q.stage, softmax, out);
    states.q.next();
    states.first = false;
  }
  if (warpgroup == 0) warp_scheduler_barrier_sync<S>(warpgroup);  // consumes the last turn passed on
  if (thread == 0) tma_store_wait_group_read<0>();
}

template <class S>
__global__ __launch_bounds__(S::kThreads, 1) void attend_forward(const __grid_constant__ ForwardMaps maps,
                                                                 const ForwardProblemOf<S> problem) {
  wait_for_work_before();
  run_warpgroups<S, ForwardShared<S>>(maps, problem);
}

}  // namespace precbench::hopper
