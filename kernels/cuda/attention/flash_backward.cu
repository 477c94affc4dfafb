// Flash attention, backward: dq, dk, dv from dout, with the probabilities recomputed from q, k and lse:
//   p = exp(scale q k^T - lse), dp = dout v^T, ds = p (dp - delta), delta = row sum of dout * out;
//   dv = p^T dout, dk = scale ds^T q, dq = scale ds k.
// Three kernels, each the only writer of its outputs, so that every sum has a fixed order and no atomics are
// needed. The price is that both large ones compute p and ds: 7 GEMMs per tile pair instead of 5.
//   delta   one warp per row and head
//   dk, dv  flash_bwd_dkv.cuh: a block owns 128 K and V rows and loops over the query blocks that see them
//   dq      flash_queries.cuh, like the forward kernel: a block owns 128 query rows of a head and loops over
//           the K and V tiles
// The tiles of the loop are double-buffered in shared memory. Rows beyond T are zeros there, and then p dout,
// dp and delta are zero too: such rows add nothing, and are not written. 14 T^2 heads head_dim / 2 FLOPs per
// sequence, of which 10 are counted as attention's.
#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/attention/flash_bwd_dkv.cuh"
#include "kernels/cuda/attention/flash_queries.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace {

using namespace flash;

// ---- delta

constexpr int kDeltaThreads = 256;

__global__ void flash_delta_kernel(BackwardData data, FlashShape shape, std::int64_t rows) {
  wait_for_work_before();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / 32;
  if (item >= rows) return;  // uniform per warp: rows counts all heads
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

// ---- dq

/// lse in powers of two, and delta, of a warp's 32 query rows; element [m][half] belongs to row 16 m + 8 half
/// + lane / 4.
struct QueryValues {
  float shift[2][2], delta[2][2];

  template <class Block>
  __device__ __forceinline__ QueryValues(const Block& block, const BackwardData& data,
                                         const FlashShape& shape) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = block.warp_q + 16 * (i / 2) + 8 * (i % 2) + block.lane / 4;
      const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * shape.T + row;
      shift[i / 2][i % 2] = row < shape.T ? data.lse[at] * static_cast<float>(kLog2E) : 0;
      delta[i / 2][i % 2] = row < shape.T ? data.delta[at] : 0;
    }
  }

  /// Replaces scores by probabilities.
  template <int kBlocks>
  __device__ __forceinline__ void exponentiate(float (&s)[2][kBlocks][4], float scale_log2) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = exp2_approx(s[m][n][e] * scale_log2 - shift[m][e / 2]);
  }

  /// Replaces p by ds.
  template <int kBlocks>
  __device__ __forceinline__ void differentiate(float (&p)[2][kBlocks][4],
                                                const float (&dp)[2][kBlocks][4]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) p[m][n][e] = p[m][n][e] * (dp[m][n][e] - delta[m][e / 2]);
  }
};

template <class Block>
__global__ __launch_bounds__(Block::kThreads, 2) void flash_query_side_kernel(BackwardData data,
                                                                              typename Block::Shape shape) {
  wait_for_work_before();
  using Rows = typename Block::Rows;
  constexpr int kBlockKV = Block::kBlockKV;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t q_tile = shared_address(shared_memory);
  const std::uint32_t dout_tile = q_tile + Block::kTileBytes;
  const std::uint32_t kv_tiles = dout_tile + Block::kTileBytes;

  const Block block(shape);
  const __nv_bfloat16* fused = data.qkv + block.first_token * shape.qkv_stride;
  block.fetch_rows(q_tile, fused + shape.q_column(block.head), shape.qkv_stride, shape);
  block.fetch_rows(dout_tile, data.dout + block.first_token * shape.out_stride + block.head * shape.head_dim,
                   shape.out_stride, shape);
  block.fetch_kv(kv_tiles, fused, block.first_tile, shape);

  [[maybe_unused]] int first_keys[2][2];
  if constexpr (kPacked<typename Block::Shape>) block.load_first_keys(first_keys, shape);
  const QueryValues rows(block, data, shape);
  float dq[2][Rows::kCols / 8][4] = {};
  block.walk(kv_tiles, fused, shape, [&](int first_kv, std::uint32_t k_tile, std::uint32_t v_tile) {
    float p[2][kBlockKV / 8][4] = {}, dp[2][kBlockKV / 8][4] = {};
    multiply_rows<Rows>(p, q_tile, 32 * block.warp, k_tile, 0);
    multiply_rows<Rows>(dp, dout_tile, 32 * block.warp, v_tile, 0);
    rows.exponentiate(p, shape.scale_log2);
    if (block.masks(first_kv)) apply_causal_mask<false>(p, block.warp_q, first_kv, 0);
    if constexpr (kPacked<typename Block::Shape>)
      if (first_kv < block.warp_hidden) apply_document_mask(p, first_keys, first_kv, 0);
    rows.differentiate(p, dp);
    multiply_scores<Rows>(dq, p, k_tile);
  });

#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < Rows::kCols / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = 32 * block.warp + 16 * m + block.lane / 4 + e / 2 * 8;
        store_word(q_tile + Rows::offset(row, n) + block.lane % 4 * 4,
                   pack_bf16(dq[m][n][e] * shape.scale, dq[m][n][e + 1] * shape.scale));
      }
  block.store_rows(data.dqkv + block.first_token * shape.qkv_stride + shape.q_column(block.head),
                   shape.qkv_stride, q_tile, shape);
}

// ---- launches

template <class Sizes>
void launch_key_side(const BackwardData& data, const AttentionShape& s, const typename Sizes::Shape& shape,
                     cudaStream_t stream) {
  PRECBENCH_CHECK(cudaFuncSetAttribute(flash_key_side_kernel<Sizes>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes));
  const dim3 grid(s.B * s.kv_heads, (s.T + Sizes::kBlockKV - 1) / Sizes::kBlockKV);
  flash_key_side_kernel<Sizes><<<grid, Sizes::kThreads, Sizes::kSharedBytes, stream>>>(data, shape);
}

template <class Block>
void launch_query_side(const BackwardData& data, const AttentionShape& s, const typename Block::Shape& shape,
                       cudaStream_t stream) {
  constexpr int kBytes = 2 * Block::kTileBytes + 2 * Block::kStageBytes;  // q and dout, two stages of K and V
  PRECBENCH_CHECK(cudaFuncSetAttribute(flash_query_side_kernel<Block>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(s.B * s.heads, (s.T + Block::kBlockQ - 1) / Block::kBlockQ);
  flash_query_side_kernel<Block><<<grid, Block::kThreads, kBytes, stream>>>(data, shape);
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
                              CUstream_st* stream, const DocumentMask& documents) {
  const BackwardData data = {dqkv.as<__nv_bfloat16>(),      dout.as<const __nv_bfloat16>(),
                             out.as<const __nv_bfloat16>(), qkv.as<const __nv_bfloat16>(),
                             lse.as<const float>(),         static_cast<float*>(workspace)};
  const std::int64_t rows = s.tokens() * s.heads;
  flash_delta_kernel<<<(rows * 32 + kDeltaThreads - 1) / kDeltaThreads, kDeltaThreads, 0, stream>>>(
      data, flash_shape(s), rows);
  const auto launch = [&](const auto& shape) {
    using Shape = std::decay_t<decltype(shape)>;
    with_tile_width(s.head_dim, [&](auto width) {
      // Large tiles if a block may have the shared memory (163 KiB on 8.0, 227 on 9.0), small ones on 8.6, 8.9,
      // 12.x.
      using Large = DkvTileShape<width.value, 128, 64, Shape>;
      using Small = DkvTileShape<width.value, 64, 32, Shape>;
      if (shared_bytes_per_block() >= Large::kSharedBytes)
        launch_key_side<Large>(data, s, shape, stream);
      else
        launch_key_side<Small>(data, s, shape, stream);
      launch_query_side<QueryBlock<width.value, (width.value > 64 ? 32 : 64), Shape>>(data, s, shape, stream);
    });
  };
  if (documents.empty())
    launch(flash_shape(s));
  else
    launch(packed_shape(s, documents.first_key.as<const int>()));
}

}  // namespace precbench
