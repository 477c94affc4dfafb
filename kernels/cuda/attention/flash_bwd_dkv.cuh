// The backward kernel of dk and dv: a block owns 128 K and V rows and loops over the query blocks that see
// them, for all query heads of the group in turn. Warps work in pairs on 32 K rows: each computes p and ds
// (transposed, keys as rows) for half of a query tile, the halves are exchanged through shared memory as
// BF16, and each accumulates half of the columns of dk and dv. So each fragment loaded from shared memory
// serves two MMAs. Heads wider than 128 leave registers for 16 rows per pair: then blocks own 64 rows. With a window or
// documents, the loop ends with the last query that sees one of the block's keys. At an offset it begins with the first that
// does, and no query may.
#pragma once

#include "kernels/cuda/attention/flash_tile.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::flash {

/// Inputs and outputs of the backward kernels.
struct BackwardData {
  __nv_bfloat16* dqkv;
  const __nv_bfloat16 *dout, *out, *qkv;
  const float* lse;
  float* delta;  ///< [B, heads, T], as lse
};

/// Tile sizes of the dk, dv kernel: kBlockKV K and V rows per block, query tiles of kBlockQ.
template <int kHeadDim_, int kBlockKV_, int kBlockQ_, class Shape_ = FlashShape>
struct DkvTileShape {
  using Shape = Shape_;
  static constexpr int kHeadDim = kHeadDim_, kBlockKV = kBlockKV_, kBlockQ = kBlockQ_;
  static constexpr int kHalfQ = kBlockQ / 2, kHalfDim = kHeadDim / 2;  // per warp of a pair
  static constexpr int kM = kRowBlocks<kHeadDim>, kPairRows = 16 * kM;
  static constexpr int kThreads = 64 * (kBlockKV / kPairRows);
  using Rows = Tile<kHeadDim>;
  using Scores = Tile<kBlockQ>;  // p and ds, transposed: [kBlockKV, kBlockQ]
  static constexpr int kRowValues =
      kPacked<Shape> || kOffset<Shape> ? 3 : 2;  // lse, delta; with documents first keys
  static constexpr int kStageBytes = 2 * Rows::bytes(kBlockQ) + kRowValues * kBlockQ * 4;  // q, dout, values
  static constexpr int kSharedBytes =
      2 * Rows::bytes(kBlockKV) + 2 * Scores::bytes(kBlockKV) + 2 * kStageBytes;
};

// For racecheck, which does not track barriers of a pair of warps (tools/ci/sanitize_gpu.sh): all warps
// synchronize.
#ifdef PRECBENCH_BLOCK_BARRIERS
inline constexpr bool kBlockBarriers = true;
#else
inline constexpr bool kBlockBarriers = false;
#endif

/// Returns the last query of a sequence whose first key is not behind `key`. `sees`: such a query, or -1. Called by whole warps
/// with the same arguments; each round narrows the range to one of 32 parts.
template <class Shape>
__device__ __forceinline__ int last_query(const Shape& shape, std::int64_t first_token, int key, int sees) {
  int blind = shape.T;  // after all such queries
  while (blind - sees > 1) {
    const int step = (blind - sees + 31) / 32, query = sees + (static_cast<int>(threadIdx.x) % 32 + 1) * step;
    const bool seen = query < blind && shape.first_key(first_token, query) <= key;
    const int count = __popc(__ballot_sync(0xffffffff, seen));  // first keys ascend: the first lanes
    sees += count * step;
    blind = min(blind, sees + step);
  }
  return sees;
}

/// A block's position and its loop over steps: query tiles of one head from the first that sees this block to
/// the last, then those of the group's next head.
template <class Sizes>
struct DkvBlock {
  using Rows = typename Sizes::Rows;
  static constexpr int kBlockKV = Sizes::kBlockKV, kBlockQ = Sizes::kBlockQ, kThreads = Sizes::kThreads;

  const int batch, kv_head;
  const int first_kv;  ///< row of the sequence
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_kv = warp / 2 * Sizes::kPairRows;  ///< row of the block
  const int half = warp % 2;                        ///< of the queries, and of the columns of dk and dv
  const std::int64_t first_token;
  const int first_tile, tiles, steps;

  __device__ __forceinline__ explicit DkvBlock(const typename Sizes::Shape& shape)
      : batch(blockIdx.x / shape.kv_heads),
        kv_head(blockIdx.x % shape.kv_heads),
        first_kv(blockIdx.y * kBlockKV),
        first_token(static_cast<std::int64_t>(batch) * shape.T),
        first_tile(first_query(shape, first_kv) / kBlockQ),
        tiles(end_tile(shape) - first_tile),
        steps(tiles * shape.group()) {}

  __device__ __forceinline__ int end_tile(const typename Sizes::Shape& shape) const {
    return end_query_tile<kBlockKV, kBlockQ>(shape, first_kv, [&]([[maybe_unused]] int key) {
      if constexpr (kPacked<typename Sizes::Shape>) return last_query(shape, first_token, key, key);
      if constexpr (kOffset<typename Sizes::Shape>) return last_query(shape, first_token, key, -1);
    });
  }

  __device__ __forceinline__ int first_q(int step) const { return (first_tile + step % tiles) * kBlockQ; }
  /// Returns the first of the thread's two adjacent queries of a step in accumulator columns 8 n...
  __device__ __forceinline__ int query(int n) const { return half * Sizes::kHalfQ + 8 * n + lane % 4 * 2; }

  /// Starts copying the q, dout, lse and delta of a step.
  __device__ __forceinline__ void fetch_queries(std::uint32_t stages, int step, const BackwardData& data,
                                                const typename Sizes::Shape& shape) const {
    static_assert(Sizes::kRowValues * kBlockQ <= kThreads, "one thread per value of a row");
    const int head = kv_head * shape.group() + step / tiles;
    const int first = first_q(step);
    const std::uint32_t q_tile = stages + step % 2 * Sizes::kStageBytes;
    const __nv_bfloat16* fused = data.qkv + first_token * shape.qkv_stride;
    Rows::template fetch<kBlockQ, kThreads>(q_tile, fused + shape.q_column(head), shape.qkv_stride, first,
                                            shape.T, shape.head_dim);
    const std::uint32_t dout_tile = q_tile + Rows::bytes(kBlockQ);
    Rows::template fetch<kBlockQ, kThreads>(
        dout_tile, data.dout + first_token * shape.out_stride + head * shape.head_dim, shape.out_stride,
        first, shape.T, shape.head_dim);
    const std::uint32_t row_values = dout_tile + Rows::bytes(kBlockQ);
    if (threadIdx.x < 2 * kBlockQ) {
      const int row = threadIdx.x % kBlockQ;
      const bool valid = first + row < shape.T;
      const float* from = (threadIdx.x < kBlockQ ? data.lse : data.delta) + first_token * shape.heads +
                          static_cast<std::int64_t>(head) * shape.T;
      cp_async_4(row_values + threadIdx.x * 4, from + (valid ? first + row : 0), valid);
    }
    if constexpr (Sizes::kRowValues == 3)
      if ((kPacked<typename Sizes::Shape> || shape.first_keys) && threadIdx.x >= 2 * kBlockQ &&
          threadIdx.x < 3 * kBlockQ) {
        const int row = threadIdx.x % kBlockQ;
        const bool valid = first + row < shape.T;
        cp_async_4(row_values + threadIdx.x * 4, shape.first_keys + first_token + (valid ? first + row : 0),
                   valid);
      }
    cp_async_commit_group();
  }
};

/// Replaces the scores of the warp's keys with its half of the queries by probabilities.
template <class Sizes>
__device__ __forceinline__ void exponentiate(float (&s)[Sizes::kM][Sizes::kHalfQ / 8][4],
                                             const DkvBlock<Sizes>& block, std::uint32_t lse_values,
                                             float scale_log2) {
#pragma unroll
  for (int n = 0; n < Sizes::kHalfQ / 8; ++n) {
    const float2 lse = load_pair(lse_values + block.query(n) * 4);
    const float shift[2] = {lse.x * static_cast<float>(kLog2E), lse.y * static_cast<float>(kLog2E)};
#pragma unroll
    for (int m = 0; m < Sizes::kM; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = exp2_approx(s[m][n][e] * scale_log2 - shift[e % 2]);
  }
}

/// The same with soft-capped scores. Also replaces dp by (dp - delta) times the cap's derivative, 1 - tanh^2, whose other
/// factor of ds is p.
template <class Sizes>
__device__ __forceinline__ void exponentiate_capped(float (&s)[Sizes::kM][Sizes::kHalfQ / 8][4],
                                                    float (&dp)[Sizes::kM][Sizes::kHalfQ / 8][4],
                                                    const DkvBlock<Sizes>& block, std::uint32_t lse_values,
                                                    const typename Sizes::Shape& shape) {
#pragma unroll
  for (int n = 0; n < Sizes::kHalfQ / 8; ++n) {
    const std::uint32_t at = lse_values + block.query(n) * 4;
    const float2 lse = load_pair(at), deltas = load_pair(at + Sizes::kBlockQ * 4);
    const float shift[2] = {lse.x * static_cast<float>(kLog2E), lse.y * static_cast<float>(kLog2E)};
    const float delta[2] = {deltas.x, deltas.y};
#pragma unroll
    for (int m = 0; m < Sizes::kM; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float tanh = shape.tanh_of(s[m][n][e]);
        s[m][n][e] = exp2_approx(tanh * shape.cap_log2 - shift[e % 2]);
        dp[m][n][e] = (dp[m][n][e] - delta[e % 2]) * cuda::tanh_slope(tanh);
      }
  }
}

/// Clears the probabilities of keys before a window.
template <class Sizes>
__device__ __forceinline__ void clear_before_window(float (&p)[Sizes::kM][Sizes::kHalfQ / 8][4],
                                                    const DkvBlock<Sizes>& block, int first_q, int window) {
#pragma unroll
  for (int n = 0; n < Sizes::kHalfQ / 8; ++n)
#pragma unroll
    for (int m = 0; m < Sizes::kM; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (block.first_kv + block.warp_kv + accumulator_row(m, e) <
            first_q + block.query(n) + e % 2 + 1 - window)
          p[m][n][e] = 0;
}

/// Clears the probabilities of keys that a query's document does not hold. `first_keys`: those of the tile's queries, the
/// first of which is at position first_q among the keys, whose first one is at key_start in the sequence.
template <class Sizes>
__device__ __forceinline__ void clear_other_documents(float (&p)[Sizes::kM][Sizes::kHalfQ / 8][4],
                                                      const DkvBlock<Sizes>& block, std::uint32_t first_keys,
                                                      int key_start, int first_q, int window) {
#pragma unroll
  for (int n = 0; n < Sizes::kHalfQ / 8; ++n) {
    const float2 pair = load_pair(first_keys + block.query(n) * 4);
    const int in_window = first_q + block.query(n) + 1 - window;
    const int first[2] = {max(__float_as_int(pair.x) - key_start, in_window),
                          max(__float_as_int(pair.y) - key_start, in_window + 1)};
#pragma unroll
    for (int m = 0; m < Sizes::kM; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (block.first_kv + block.warp_kv + accumulator_row(m, e) < first[e % 2]) p[m][n][e] = 0;
  }
}

/// Stores p and ds in shared memory for the pair's other warp. Of soft-capped scores, dp is already that of
/// exponentiate_capped.
template <class Sizes>
__device__ __forceinline__ void store_probabilities(std::uint32_t p_tile, std::uint32_t ds_tile,
                                                    const float (&p)[Sizes::kM][Sizes::kHalfQ / 8][4],
                                                    const float (&dp)[Sizes::kM][Sizes::kHalfQ / 8][4],
                                                    const DkvBlock<Sizes>& block,
                                                    std::uint32_t delta_values) {
#pragma unroll
  for (int n = 0; n < Sizes::kHalfQ / 8; ++n) {
    float2 delta = {0, 0};
    if constexpr (!kCapped<typename Sizes::Shape>) delta = load_pair(delta_values + block.query(n) * 4);
#pragma unroll
    for (int m = 0; m < Sizes::kM; ++m)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = block.warp_kv + 16 * m + block.lane / 4 + e / 2 * 8;
        const std::uint32_t at = Sizes::Scores::offset(row, block.query(n) / 8) + block.lane % 4 * 4;
        const float p0 = p[m][n][e], p1 = p[m][n][e + 1];
        store_word(p_tile + at, pack_bf16(p0, p1));
        store_word(ds_tile + at, pack_bf16(p0 * (dp[m][n][e] - delta.x), p1 * (dp[m][n][e + 1] - delta.y)));
      }
  }
}

/// c += a b, [the warp's keys, half of the columns], over all queries of a step: a is p^T or ds^T, b dout or q.
template <class Sizes, int kBlocks>
__device__ __forceinline__ void accumulate(float (&c)[Sizes::kM][kBlocks][4], std::uint32_t scores,
                                           std::uint32_t queries, const DkvBlock<Sizes>& block) {
#pragma unroll
  for (int k = 0; k < Sizes::kBlockQ / 16; ++k) {
    std::uint32_t a[Sizes::kM][4];
#pragma unroll
    for (int m = 0; m < Sizes::kM; ++m) Sizes::Scores::load_a(a[m], scores, block.warp_kv + 16 * m, k);
    multiply_columns<typename Sizes::Rows>(c, a, queries, k, block.half * (kBlocks / 2));
  }
}

/// Writes dk and dv through the tiles of k and v, which are no longer read.
template <class Sizes, int kBlocks>
__device__ __forceinline__ void store_gradients(const float (&dk)[Sizes::kM][kBlocks][4],
                                                const float (&dv)[Sizes::kM][kBlocks][4],
                                                std::uint32_t k_tile, std::uint32_t v_tile,
                                                const DkvBlock<Sizes>& block, const BackwardData& data,
                                                const typename Sizes::Shape& shape) {
  using Rows = typename Sizes::Rows;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < Sizes::kM; ++m)
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = block.warp_kv + 16 * m + block.lane / 4 + e / 2 * 8;
        const int at = Rows::offset(row, block.half * kBlocks + n) + block.lane % 4 * 4;
        store_word(k_tile + at, pack_bf16(dk[m][n][e] * shape.scale, dk[m][n][e + 1] * shape.scale));
        store_word(v_tile + at, pack_bf16(dv[m][n][e], dv[m][n][e + 1]));
      }
  __syncthreads();
  __nv_bfloat16* gradient = data.dqkv + block.first_token * shape.qkv_stride;
  if constexpr (kOffset<typename Sizes::Shape>) gradient = key_rows(shape, shape.dkv, block.batch);
  for (int index = threadIdx.x; index < Sizes::kBlockKV * Rows::kChunks; index += Sizes::kThreads) {
    const int row = index / Rows::kChunks, chunk = index % Rows::kChunks;
    if (block.first_kv + row >= shape.keys() || chunk * 8 >= shape.head_dim) continue;
    __nv_bfloat16* to = gradient + (block.first_kv + row) * shape.key_stride() + chunk * 8;
    *reinterpret_cast<uint4*>(to + shape.k_column(block.kv_head)) =
        load_chunk(k_tile + Rows::offset(row, chunk));
    *reinterpret_cast<uint4*>(to + shape.v_column(block.kv_head)) =
        load_chunk(v_tile + Rows::offset(row, chunk));
  }
}

template <class Sizes>
__global__ __launch_bounds__(Sizes::kThreads, 1) void flash_key_side_kernel(BackwardData data,
                                                                            typename Sizes::Shape shape) {
  wait_for_work_before();
  using Rows = typename Sizes::Rows;
  using Shape = typename Sizes::Shape;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t k_tile = shared_address(shared_memory);
  const std::uint32_t v_tile = k_tile + Rows::bytes(Sizes::kBlockKV);
  const std::uint32_t p_tile = v_tile + Rows::bytes(Sizes::kBlockKV);
  const std::uint32_t ds_tile = p_tile + Sizes::Scores::bytes(Sizes::kBlockKV);
  const std::uint32_t stages = ds_tile + Sizes::Scores::bytes(Sizes::kBlockKV);

  const DkvBlock<Sizes> block(shape);
  const __nv_bfloat16* keys = data.qkv + block.first_token * shape.qkv_stride;
  if constexpr (kOffset<Shape>) keys = key_rows(shape, shape.kv, block.batch);
  fetch_kv<Rows, Sizes::kBlockKV, Sizes::kThreads>(k_tile, keys, block.kv_head, block.first_kv, shape);
  if (!kOffset<Shape> || block.steps > 0) block.fetch_queries(stages, 0, data, shape);
  const PairKeys<Sizes::kPairRows, Sizes::kBlockQ> pair{block.first_kv + block.warp_kv};

  float dk[Sizes::kM][Sizes::kHalfDim / 8][4] = {}, dv[Sizes::kM][Sizes::kHalfDim / 8][4] = {};
  for (int step = 0; step < block.steps; ++step) {
    cp_async_wait_all();
    __syncthreads();  // the stage has arrived; the other stage, p and ds of the last step are no longer read
    if (step + 1 < block.steps) block.fetch_queries(stages, step + 1, data, shape);
    const int first_q = block.first_q(step);
    int place = first_q;  // of the first query among the keys
    if constexpr (kOffset<Shape>) place += shape.shift;
    if (!kBlockBarriers && pair.is_behind(place)) continue;
    const std::uint32_t q_tile = stages + step % 2 * Sizes::kStageBytes;
    const std::uint32_t dout_tile = q_tile + Rows::bytes(Sizes::kBlockQ);
    const std::uint32_t lse_values = dout_tile + Rows::bytes(Sizes::kBlockQ);
    [[maybe_unused]] const std::uint32_t first_keys = lse_values + 2 * Sizes::kBlockQ * 4;
    if constexpr (kHasFirstKeys<Shape>) {
      int first_key = place + 1 - shape.window;
      if constexpr (kPacked<Shape>) first_key = max(__float_as_int(load_pair(first_keys).x), first_key);
      if constexpr (kOffset<Shape>)
        if (shape.first_keys)
          first_key = max(__float_as_int(load_pair(first_keys).x) - shape.key_start, first_key);
      if (!kBlockBarriers && pair.is_before(first_key)) continue;
    }

    // k q^T and v dout^T, both [the pair's keys, kHalfQ queries]
    float p[Sizes::kM][Sizes::kHalfQ / 8][4] = {}, dp[Sizes::kM][Sizes::kHalfQ / 8][4] = {};
    multiply_rows<Rows>(p, k_tile, block.warp_kv, q_tile, block.half * Sizes::kHalfQ);
    multiply_rows<Rows>(dp, v_tile, block.warp_kv, dout_tile, block.half * Sizes::kHalfQ);
    if constexpr (kCapped<Shape>)
      exponentiate_capped(p, dp, block, lse_values, shape);
    else
      exponentiate(p, block, lse_values, shape.scale_log2);
    if (pair.masks_end(place)) apply_causal_mask<true>(p, pair.first, place + block.half * Sizes::kHalfQ, 0);
    if constexpr (kWindowed<Shape>)
      if (pair.masks_window(place, shape.window)) clear_before_window(p, block, place, shape.window);
    if constexpr (kPacked<Shape>) clear_other_documents(p, block, first_keys, 0, place, shape.window);
    if constexpr (kOffset<Shape>)
      if (shape.first_keys) clear_other_documents(p, block, first_keys, shape.key_start, place, shape.window);
    store_probabilities(p_tile, ds_tile, p, dp, block, lse_values + Sizes::kBlockQ * 4);
    if (kBlockBarriers)
      __syncthreads();
    else
      named_barrier_sync(1 + block.warp / 2, 64);  // the pair has both halves of p and ds
    accumulate(dv, p_tile, dout_tile, block);
    accumulate(dk, ds_tile, q_tile, block);
  }
  if (kOffset<Shape> && block.steps <= 0) {  // no query sees the keys, whose copies no step waited for
    cp_async_commit_group();
    cp_async_wait_all();
  }
  store_gradients(dk, dv, k_tile, v_tile, block, data, shape);
}

}  // namespace precbench::flash
