// Flash attention, backward: dq, dk, dv from dout, with the probabilities computed again from q, k and lse:
//   p = exp(scale q k^T - lse), dp = dout v^T, ds = p (dp - delta), delta = row sum of dout * out;
//   dv = p^T dout, dk = scale ds^T q, dq = scale ds k.
// Three kernels, each the only writer of what it writes, so that every sum has a fixed order and no atomics
// are needed; the price is that the two large ones both compute p and ds: 7 products per tile pair where 5
// would do.
//   delta   one warp per row and head
//   dk, dv  a block owns 128 K and V rows and walks over the query blocks that see them, for all query
//           heads of the group in turn. Warps work in pairs on 32 K rows: each computes p and ds
//           (transposed, keys as rows) for half of a query tile, the halves are exchanged through shared
//           memory as BF16, and each accumulates half of the columns of dk and dv. So each fragment loaded
//           from shared memory serves two products.
//   dq      as the forward kernel: a block owns 128 query rows of a head, 32 per warp, and walks over the
//           K and V tiles
// Walked-over tiles are double-buffered in shared memory. Rows beyond T are zeros there, and then p dout, dp
// and delta are zero too: such rows add nothing, and are not written. 14 T^2 heads head_dim / 2 FLOPs per
// sequence, of which 10 are counted as attention's.
#include "kernels/cuda/attention_flash.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/check.h"

namespace precbench {
namespace {

using namespace flash;

struct BackwardData {
  __nv_bfloat16* dqkv;
  const __nv_bfloat16 *dout, *out, *qkv;
  const float* lse;
  float* delta;  ///< [B, heads, T], as lse
};

// ---- delta

constexpr int kDeltaThreads = 256;

__global__ void flash_delta_kernel(BackwardData data, FlashShape shape, std::int64_t rows) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / 32;
  if (item >= rows) return;  // rows of all heads: warps leave whole
  const std::int64_t token = item / shape.heads;
  const int head = static_cast<int>(item % shape.heads), lane = threadIdx.x % 32;
  const std::int64_t at = token * shape.out_stride + head * shape.head_dim;
  float sum = 0;
  for (int d = 2 * lane; d < shape.head_dim; d += 64) {
    const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(data.dout + at + d));
    const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(data.out + at + d));
    sum += x.x * y.x + x.y * y.y;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  const std::int64_t batch = token / shape.T, t = token % shape.T;
  if (lane == 0) data.delta[(batch * shape.heads + head) * shape.T + t] = sum;
}

// ---- dk, dv

/// Tile sizes of the dk, dv kernel: kBlockKV K and V rows a block, query tiles of kBlockQ.
template <int kHeadDim_, int kBlockKV_, int kBlockQ_>
struct KeySide {
  static constexpr int kHeadDim = kHeadDim_, kBlockKV = kBlockKV_, kBlockQ = kBlockQ_;
  static constexpr int kThreads = 2 * kBlockKV;  // two warps for 32 rows
  using Rows = Tile<kHeadDim>;
  using Scores = Tile<kBlockQ>;  // p and ds, transposed: [kBlockKV, kBlockQ]
  static constexpr int kStageBytes = 2 * Rows::bytes(kBlockQ) + 2 * kBlockQ * 4;  // q, dout, lse, delta
  static constexpr int kSharedBytes =
      2 * Rows::bytes(kBlockKV) + 2 * Scores::bytes(kBlockKV) + 2 * kStageBytes;
};

// For racecheck, which does not follow barriers of a pair of warps (tools/ci/sanitize_gpu.sh): all warps meet, none skips.
#ifdef PRECBENCH_BLOCK_BARRIERS
constexpr bool kBlockBarriers = true;
#else
constexpr bool kBlockBarriers = false;
#endif

template <class Sizes>
__global__ __launch_bounds__(Sizes::kThreads, 1) void flash_key_side_kernel(BackwardData data,
                                                                            FlashShape shape) {
  using Rows = typename Sizes::Rows;
  using Scores = typename Sizes::Scores;
  constexpr int kBlockKV = Sizes::kBlockKV, kBlockQ = Sizes::kBlockQ, kThreads = Sizes::kThreads;
  constexpr int kHalfQ = kBlockQ / 2, kHalfDim = Sizes::kHeadDim / 2;

  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t k_tile = shared_address(shared_memory);
  const std::uint32_t v_tile = k_tile + Rows::bytes(kBlockKV);
  const std::uint32_t p_tile = v_tile + Rows::bytes(kBlockKV);
  const std::uint32_t ds_tile = p_tile + Scores::bytes(kBlockKV);
  const std::uint32_t stages = ds_tile + Scores::bytes(kBlockKV);

  const int batch = blockIdx.x / shape.kv_heads, kv_head = blockIdx.x % shape.kv_heads;
  const int first_kv = blockIdx.y * kBlockKV;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_kv = warp / 2 * 32, half = warp % 2;
  const std::int64_t first_token = static_cast<std::int64_t>(batch) * shape.T;
  const __nv_bfloat16* fused = data.qkv + first_token * shape.qkv_stride;

  // Query tiles of one head from the first that sees this block to the last, then those of the group's next
  // head.
  const int first_tile = first_kv / kBlockQ;
  const int tiles = (shape.T + kBlockQ - 1) / kBlockQ - first_tile;
  const int steps = tiles * shape.group();
  const auto fetch_stage = [&](int step) {
    const int head = kv_head * shape.group() + step / tiles;
    const int first_q = (first_tile + step % tiles) * kBlockQ;
    const std::uint32_t q_tile = stages + step % 2 * Sizes::kStageBytes;
    Rows::template fetch<kBlockQ, kThreads>(q_tile, fused + shape.q_column(head), shape.qkv_stride, first_q,
                                            shape.T, shape.head_dim);
    const std::uint32_t dout_tile = q_tile + Rows::bytes(kBlockQ);
    Rows::template fetch<kBlockQ, kThreads>(
        dout_tile, data.dout + first_token * shape.out_stride + head * shape.head_dim, shape.out_stride,
        first_q, shape.T, shape.head_dim);
    const std::uint32_t row_values = dout_tile + Rows::bytes(kBlockQ);
    if (threadIdx.x < 2 * kBlockQ) {
      const int row = threadIdx.x % kBlockQ;
      const bool valid = first_q + row < shape.T;
      const float* from = (threadIdx.x < kBlockQ ? data.lse : data.delta) + first_token * shape.heads +
                          static_cast<std::int64_t>(head) * shape.T;
      copy_async_4(row_values + threadIdx.x * 4, from + (valid ? first_q + row : 0), valid);
    }
    commit_copies();
  };
  static_assert(2 * kBlockQ <= kThreads, "one thread per lse and delta");
  Rows::template fetch<kBlockKV, kThreads>(k_tile, fused + shape.k_column(kv_head), shape.qkv_stride,
                                           first_kv, shape.T, shape.head_dim);
  Rows::template fetch<kBlockKV, kThreads>(v_tile, fused + shape.v_column(kv_head), shape.qkv_stride,
                                           first_kv, shape.T, shape.head_dim);
  fetch_stage(0);

  float dk[2][kHalfDim / 8][4] = {}, dv[2][kHalfDim / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies();
    __syncthreads();  // the stage is there; nobody reads the other one, p or ds of the last step any more
    if (step + 1 < steps) fetch_stage(step + 1);
    const int first_q = (first_tile + step % tiles) * kBlockQ;
    if (!kBlockBarriers && first_q + kBlockQ - 1 < first_kv + warp_kv)
      continue;  // all queries before this pair's keys
    const std::uint32_t q_tile = stages + step % 2 * Sizes::kStageBytes;
    const std::uint32_t dout_tile = q_tile + Rows::bytes(kBlockQ);
    const std::uint32_t lse_values = dout_tile + Rows::bytes(kBlockQ);
    const std::uint32_t delta_values = lse_values + kBlockQ * 4;

    // k q^T and v dout^T, both [32 keys, kHalfQ queries]
    float s[2][kHalfQ / 8][4] = {}, dp[2][kHalfQ / 8][4] = {};
    const auto product = [&](float(&c)[2][kHalfQ / 8][4], std::uint32_t keys, std::uint32_t queries) {
#pragma unroll
      for (int d = 0; d < Sizes::kHeadDim / 16; ++d) {
        std::uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) Rows::load_a(a[m], keys, warp_kv + 16 * m, d);
#pragma unroll
        for (int n = 0; n < kHalfQ / 16; ++n) {
          std::uint32_t b[4];
          Rows::load_b(b, queries, half * kHalfQ + 16 * n, d);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            multiply_add(c[m][2 * n], a[m], b[0], b[1]);
            multiply_add(c[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
    };
    product(s, k_tile, q_tile);
    product(dp, v_tile, dout_tile);

    const bool masked = first_q < first_kv + warp_kv + 31;
#pragma unroll
    for (int n = 0; n < kHalfQ / 8; ++n) {
      const int column = half * kHalfQ + 8 * n + lane % 4 * 2;
      const float2 lse = load_pair(lse_values + column * 4), delta = load_pair(delta_values + column * 4);
      const float shift[2] = {lse.x * static_cast<float>(kLog2E), lse.y * static_cast<float>(kLog2E)};
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int row = warp_kv + 16 * m + lane / 4 + e / 2 * 8;
          float p0 = exp2_approx(s[m][n][e] * shape.scale_log2 - shift[0]);
          float p1 = exp2_approx(s[m][n][e + 1] * shape.scale_log2 - shift[1]);
          if (masked) {
            if (first_kv + row > first_q + column) p0 = 0;
            if (first_kv + row > first_q + column + 1) p1 = 0;
          }
          const std::uint32_t at = Scores::offset(row, column / 8) + lane % 4 * 4;
          store_word(p_tile + at, pack_bf16(p0, p1));
          store_word(ds_tile + at, pack_bf16(p0 * (dp[m][n][e] - delta.x), p1 * (dp[m][n][e + 1] - delta.y)));
        }
    }
    if (kBlockBarriers)
      __syncthreads();
    else
      named_barrier(1 + warp / 2, 64);  // the pair has both halves of p and ds

    // p^T dout and ds^T q, [32 keys, kHalfDim columns]
    const auto accumulate = [&](float(&c)[2][kHalfDim / 8][4], std::uint32_t scores, std::uint32_t queries) {
#pragma unroll
      for (int k = 0; k < kBlockQ / 16; ++k) {
        std::uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) Scores::load_a(a[m], scores, warp_kv + 16 * m, k);
#pragma unroll
        for (int d = 0; d < kHalfDim / 16; ++d) {
          std::uint32_t b[4];
          Rows::load_b_transposed(b, queries, 16 * k, half * (kHalfDim / 16) + d);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            multiply_add(c[m][2 * d], a[m], b[0], b[1]);
            multiply_add(c[m][2 * d + 1], a[m], b[2], b[3]);
          }
        }
      }
    };
    accumulate(dv, p_tile, dout_tile);
    accumulate(dk, ds_tile, q_tile);
  }

  __syncthreads();  // k and v have been read for the last time: their tiles take dk and dv
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < kHalfDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = warp_kv + 16 * m + lane / 4 + e / 2 * 8;
        const int at = Rows::offset(row, half * (kHalfDim / 8) + n) + lane % 4 * 4;
        store_word(k_tile + at, pack_bf16(dk[m][n][e] * shape.scale, dk[m][n][e + 1] * shape.scale));
        store_word(v_tile + at, pack_bf16(dv[m][n][e], dv[m][n][e + 1]));
      }
  __syncthreads();
  __nv_bfloat16* gradient = data.dqkv + first_token * shape.qkv_stride;
  for (int index = threadIdx.x; index < kBlockKV * Rows::kChunks; index += kThreads) {
    const int row = index / Rows::kChunks, chunk = index % Rows::kChunks;
    if (first_kv + row >= shape.T || chunk * 8 >= shape.head_dim) continue;
    __nv_bfloat16* to = gradient + (first_kv + row) * shape.qkv_stride + chunk * 8;
    *reinterpret_cast<uint4*>(to + shape.k_column(kv_head)) = load_chunk(k_tile + Rows::offset(row, chunk));
    *reinterpret_cast<uint4*>(to + shape.v_column(kv_head)) = load_chunk(v_tile + Rows::offset(row, chunk));
  }
}

// ---- dq

/// Tile sizes of the dq kernel: 128 query rows a block, K and V tiles of kBlockKV.
template <int kHeadDim_, int kBlockKV_>
struct QuerySide {
  static constexpr int kHeadDim = kHeadDim_, kBlockKV = kBlockKV_;
  static constexpr int kBlockQ = 128, kThreads = kBlockQ;
  using Rows = Tile<kHeadDim>;
  static constexpr int kSharedBytes = Rows::bytes(2 * kBlockQ + 4 * kBlockKV);
};

template <class Sizes>
__global__ __launch_bounds__(Sizes::kThreads, 2) void flash_query_side_kernel(BackwardData data,
                                                                              FlashShape shape) {
  using Rows = typename Sizes::Rows;
  constexpr int kBlockKV = Sizes::kBlockKV, kBlockQ = Sizes::kBlockQ, kThreads = Sizes::kThreads;
  constexpr int kHeadDim = Sizes::kHeadDim, kStageBytes = 2 * Rows::bytes(kBlockKV);

  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t q_tile = shared_address(shared_memory);
  const std::uint32_t dout_tile = q_tile + Rows::bytes(kBlockQ);
  const std::uint32_t kv_tiles = dout_tile + Rows::bytes(kBlockQ);  // K0 V0 K1 V1

  const int batch = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads, kv_head = head / shape.group();
  const int first_q = (gridDim.y - 1 - blockIdx.y) * kBlockQ;
  const int tiles = (min(first_q + kBlockQ, shape.T) + kBlockKV - 1) / kBlockKV;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_q = first_q + 32 * warp;
  const std::int64_t first_token = static_cast<std::int64_t>(batch) * shape.T;
  const __nv_bfloat16* fused = data.qkv + first_token * shape.qkv_stride;

  const auto fetch_kv = [&](int tile) {
    const std::uint32_t stage = kv_tiles + tile % 2 * kStageBytes;
    Rows::template fetch<kBlockKV, kThreads>(stage, fused + shape.k_column(kv_head), shape.qkv_stride,
                                             tile * kBlockKV, shape.T, shape.head_dim);
    Rows::template fetch<kBlockKV, kThreads>(stage + Rows::bytes(kBlockKV), fused + shape.v_column(kv_head),
                                             shape.qkv_stride, tile * kBlockKV, shape.T, shape.head_dim);
    commit_copies();
  };
  Rows::template fetch<kBlockQ, kThreads>(q_tile, fused + shape.q_column(head), shape.qkv_stride, first_q,
                                          shape.T, shape.head_dim);
  Rows::template fetch<kBlockQ, kThreads>(dout_tile,
                                          data.dout + first_token * shape.out_stride + head * shape.head_dim,
                                          shape.out_stride, first_q, shape.T, shape.head_dim);
  fetch_kv(0);

  float shift[2][2], delta[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = warp_q + 16 * (i / 2) + 8 * (i % 2) + lane / 4;
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * shape.T + row;
    shift[i / 2][i % 2] = row < shape.T ? data.lse[at] * static_cast<float>(kLog2E) : 0;
    delta[i / 2][i % 2] = row < shape.T ? data.delta[at] : 0;
  }

  float dq[2][kHeadDim / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies();
    __syncthreads();  // the tile is there, and nobody reads the other one any more
    if (tile + 1 < tiles) fetch_kv(tile + 1);
    const int first_kv = tile * kBlockKV;
    if (first_kv > warp_q + 31) continue;  // all of it after this warp's rows
    const std::uint32_t k_tile = kv_tiles + tile % 2 * kStageBytes;
    const std::uint32_t v_tile = k_tile + Rows::bytes(kBlockKV);

    // q k^T and dout v^T
    float s[2][kBlockKV / 8][4] = {}, dp[2][kBlockKV / 8][4] = {};
    const auto product = [&](float(&c)[2][kBlockKV / 8][4], std::uint32_t queries, std::uint32_t keys) {
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        std::uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) Rows::load_a(a[m], queries, 32 * warp + 16 * m, d);
#pragma unroll
        for (int n = 0; n < kBlockKV / 16; ++n) {
          std::uint32_t b[4];
          Rows::load_b(b, keys, 16 * n, d);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            multiply_add(c[m][2 * n], a[m], b[0], b[1]);
            multiply_add(c[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
    };
    product(s, q_tile, k_tile);
    product(dp, dout_tile, v_tile);

    // ds, in place of s
    const bool masked = first_kv + kBlockKV - 1 > warp_q;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kBlockKV / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float p = exp2_approx(s[m][n][e] * shape.scale_log2 - shift[m][e / 2]);
          if (masked) {
            const int row = warp_q + 16 * m + lane / 4 + e / 2 * 8;
            const int column = first_kv + 8 * n + lane % 4 * 2 + e % 2;
            if (column > row) p = 0;
          }
          s[m][n][e] = p * (dp[m][n][e] - delta[m][e / 2]);
        }

#pragma unroll
    for (int k = 0; k < kBlockKV / 16; ++k) {
      std::uint32_t ds[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) accumulators_to_operand(ds[m], s[m][2 * k], s[m][2 * k + 1]);
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        std::uint32_t b[4];
        Rows::load_b_transposed(b, k_tile, 16 * k, d);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(dq[m][2 * d], ds[m], b[0], b[1]);
          multiply_add(dq[m][2 * d + 1], ds[m], b[2], b[3]);
        }
      }
    }
  }

  // Through the warp's own rows of the q tile, so that dq leaves in whole chunks.
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = 32 * warp + 16 * m + lane / 4 + e / 2 * 8;
        store_word(q_tile + Rows::offset(row, n) + lane % 4 * 4,
                   pack_bf16(dq[m][n][e] * shape.scale, dq[m][n][e + 1] * shape.scale));
      }
  __syncwarp();
  __nv_bfloat16* gradient = data.dqkv + first_token * shape.qkv_stride + shape.q_column(head);
#pragma unroll
  for (int i = 0; i < Rows::kChunks; ++i) {
    const int index = lane + 32 * i;
    const int row = 32 * warp + index / Rows::kChunks, chunk = index % Rows::kChunks;
    if (first_q + row < shape.T && chunk * 8 < shape.head_dim)
      *reinterpret_cast<uint4*>(gradient + (first_q + row) * shape.qkv_stride + chunk * 8) =
          load_chunk(q_tile + Rows::offset(row, chunk));
  }
}

// ---- launches

template <class Sizes>
void launch_key_side(const BackwardData& data, const AttentionShape& s, cudaStream_t stream) {
  PRECBENCH_CHECK(cudaFuncSetAttribute(flash_key_side_kernel<Sizes>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes));
  const dim3 grid(s.B * s.kv_heads, (s.T + Sizes::kBlockKV - 1) / Sizes::kBlockKV);
  flash_key_side_kernel<Sizes><<<grid, Sizes::kThreads, Sizes::kSharedBytes, stream>>>(data, flash_shape(s));
}

template <class Sizes>
void launch_query_side(const BackwardData& data, const AttentionShape& s, cudaStream_t stream) {
  PRECBENCH_CHECK(cudaFuncSetAttribute(flash_query_side_kernel<Sizes>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes));
  const dim3 grid(s.B * s.heads, (s.T + Sizes::kBlockQ - 1) / Sizes::kBlockQ);
  flash_query_side_kernel<Sizes>
      <<<grid, Sizes::kThreads, Sizes::kSharedBytes, stream>>>(data, flash_shape(s));
}

int shared_bytes_per_block() {
  int device = 0, bytes = 0;
  PRECBENCH_CHECK(cudaGetDevice(&device));
  PRECBENCH_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

}  // namespace

std::int64_t flash_attention_workspace(const AttentionShape& s) { return s.tokens() * s.heads * 4; }

void flash_attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out, const Tensor& lse,
                              const Tensor& qkv, const AttentionShape& s, void* workspace,
                              CUstream_st* stream) {
  const BackwardData data = {dqkv.as<__nv_bfloat16>(),      dout.as<const __nv_bfloat16>(),
                             out.as<const __nv_bfloat16>(), qkv.as<const __nv_bfloat16>(),
                             lse.as<const float>(),         static_cast<float*>(workspace)};
  const std::int64_t rows = s.tokens() * s.heads;
  flash_delta_kernel<<<(rows * 32 + kDeltaThreads - 1) / kDeltaThreads, kDeltaThreads, 0, stream>>>(
      data, flash_shape(s), rows);
  with_tile_width(s.head_dim, [&](auto width) {
    // Large tiles where a block may have the shared memory (163 KiB on 8.0, 227 on 9.0), small ones
    // on 8.6, 8.9, 12.x.
    using Large = KeySide<width.value, 128, 64>;
    using Small = KeySide<width.value, 64, 32>;
    if (shared_bytes_per_block() >= Large::kSharedBytes)
      launch_key_side<Large>(data, s, stream);
    else
      launch_key_side<Small>(data, s, stream);
    launch_query_side<QuerySide<width.value, (width.value > 64 ? 32 : 64)>>(data, s, stream);
  });
}

}  // namespace precbench
