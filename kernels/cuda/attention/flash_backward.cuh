// The backward pass of flash attention: dq, dk, dv from dout, with the probabilities recomputed from q, k and lse:
//   p = exp(scale q k^T - lse), dp = dout v^T, ds = p (dp - delta), delta = row sum of dout * out;
//   dv = p^T dout, dk = scale ds^T q, dq = scale ds k.
// Soft-capped scores cap tanh(scale q k^T / cap) multiply ds by 1 - tanh^2.
// Three kernels, each the only writer of its outputs, so that every sum has a fixed order and no atomics are
// needed. The price is that both large ones compute p and ds: 7 GEMMs per tile pair instead of 5.
//   delta   one warp per row and head
//   dk, dv  flash_bwd_dkv.cuh: a block owns 128 K and V rows and loops over the query blocks that see them
//   dq      here, and in flash_queries.cuh like the forward kernel: a block owns 128 query rows of a head and loops
//           over the K and V tiles
// The tiles of the loop are double-buffered in shared memory. Rows beyond T are zeros there, and then p dout,
// dp and delta are zero too: such rows add nothing, and are not written. 14 T^2 heads head_dim / 2 FLOPs per
// sequence, of which 10 are counted as attention's.
#pragma once

#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/attention/flash_bwd_dkv.cuh"
#include "kernels/cuda/attention/flash_queries.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::flash {

// ---- dq

/// lse in powers of two, and delta, of a warp's query rows; element [m][half] belongs to row 16 m + 8 half
/// + lane / 4.
template <class Block>
struct QueryValues {
  static constexpr int kM = Block::kM;
  float shift[kM][2], delta[kM][2];

  __device__ __forceinline__ QueryValues(const Block& block, const BackwardData& data,
                                         const FlashShape& shape) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int row = block.warp_q + 16 * (i / 2) + 8 * (i % 2) + block.lane / 4;
      const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * shape.T + row;
      shift[i / 2][i % 2] = row < shape.T ? data.lse[at] * static_cast<float>(kLog2E) : 0;
      delta[i / 2][i % 2] = row < shape.T ? data.delta[at] : 0;
    }
  }

  /// Replaces scores by probabilities.
  template <int kBlocks>
  __device__ __forceinline__ void exponentiate(float (&s)[kM][kBlocks][4], float scale_log2) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = exp2_approx(s[m][n][e] * scale_log2 - shift[m][e / 2]);
  }

  /// Replaces soft-capped scores' q k^T by probabilities times 1 - tanh^2, the cap's derivative.
  template <int kBlocks>
  __device__ __forceinline__ void exponentiate_capped(float (&s)[kM][kBlocks][4],
                                                      const typename Block::Shape& shape) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float tanh = shape.tanh_of(s[m][n][e]);
          s[m][n][e] = exp2_approx(tanh * shape.cap_log2 - shift[m][e / 2]) * cuda::tanh_slope(tanh);
        }
  }

  /// Replaces p by ds.
  template <int kBlocks>
  __device__ __forceinline__ void differentiate(float (&p)[kM][kBlocks][4],
                                                const float (&dp)[kM][kBlocks][4]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
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
  constexpr int kM = Block::kM, kBlockKV = Block::kBlockKV;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t q_tile = shared_address(shared_memory);
  const std::uint32_t dout_tile = q_tile + Block::kTileBytes;
  const std::uint32_t kv_tiles = dout_tile + Block::kTileBytes;

  const Block block(shape);
  const __nv_bfloat16* fused = data.qkv + block.first_token * shape.qkv_stride;
  block.fetch_rows(q_tile, fused + shape.q_column(block.head), shape.qkv_stride, shape);
  block.fetch_rows(dout_tile, data.dout + block.first_token * shape.out_stride + block.head * shape.head_dim,
                   shape.out_stride, shape);
  const __nv_bfloat16* keys = fused;
  if constexpr (kOffset<typename Block::Shape>) keys = key_rows(shape, shape.kv, block.batch);
  block.fetch_kv(kv_tiles, keys, block.first_tile, shape);

  [[maybe_unused]] int first_keys[kM][2];
  if constexpr (kHasFirstKeys<typename Block::Shape>) block.load_first_keys(first_keys, shape);
  const QueryValues<Block> rows(block, data, shape);
  float dq[kM][Rows::kCols / 8][4] = {};
  block.walk(kv_tiles, keys, shape, [&](int first_kv, std::uint32_t k_tile, std::uint32_t v_tile) {
    float p[kM][kBlockKV / 8][4] = {}, dp[kM][kBlockKV / 8][4] = {};
    multiply_rows<Rows>(p, q_tile, Block::kWarpRows * block.warp, k_tile, 0);
    multiply_rows<Rows>(dp, dout_tile, Block::kWarpRows * block.warp, v_tile, 0);
    if constexpr (kCapped<typename Block::Shape>)
      rows.exponentiate_capped(p, shape);
    else
      rows.exponentiate(p, shape.scale_log2);
    if (block.queries.masks_end(shape, first_kv)) {
      apply_causal_mask<false>(p, block.queries.place, first_kv, 0);
      if constexpr (kOffset<typename Block::Shape>) apply_last_key_mask(p, first_kv, shape.keys(), 0);
    }
    if constexpr (kHasFirstKeys<typename Block::Shape>)
      if (block.queries.masks_begin(first_kv)) apply_first_key_mask(p, first_keys, first_kv, 0);
    rows.differentiate(p, dp);
    multiply_scores<Rows>(dq, p, k_tile);
  });

#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < Rows::kCols / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int row = Block::kWarpRows * block.warp + 16 * m + block.lane / 4 + e / 2 * 8;
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
  const dim3 grid(s.B * s.kv_heads, (s.keys() + Sizes::kBlockKV - 1) / Sizes::kBlockKV);
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

/// Tiles of the dk, dv kernel for heads wider than 128, 137 KiB at 256.
template <int kHeadDim, class Shape>
using WideDkvTiles = DkvTileShape<kHeadDim, 64, 32, Shape>;

/// Returns the shared memory that a block may have: 163 KiB on 8.0, 227 on 9.0, 99 on 8.6, 8.9 and 12.x.
int shared_bytes_per_block();

template <class Shape>
void launch_backward(const BackwardData& data, const AttentionShape& s, const Shape& shape,
                     cudaStream_t stream) {
  with_tile_width(s.head_dim, [&](auto width) {
    constexpr int kWidth = width.value;
    if constexpr (kWidth > 128) {
      launch_key_side<WideDkvTiles<kWidth, Shape>>(data, s, shape, stream);
      launch_query_side<QueryBlock<kWidth, 16, Shape>>(data, s, shape, stream);  // 96 KiB
    } else {
      using Large = DkvTileShape<kWidth, 128, 64, Shape>;
      using Small = DkvTileShape<kWidth, 64, 32, Shape>;
      if (shared_bytes_per_block() >= Large::kSharedBytes)
        launch_key_side<Large>(data, s, shape, stream);
      else
        launch_key_side<Small>(data, s, shape, stream);
      launch_query_side<QueryBlock<kWidth, (kWidth > 64 ? 32 : 64), Shape>>(data, s, shape, stream);
    }
  });
}

/// Launch the same with soft-capped scores (flash_softcap_backward.cu), and with an offset, also soft-capped
/// (flash_offset_backward.cu).
void launch_softcap_backward(const BackwardData& data, const AttentionShape& s, const DocumentMask& documents,
                             cudaStream_t stream);
void launch_offset_backward(const BackwardData& data, const AttentionShape& s, const OffsetShape& shape,
                            cudaStream_t stream);

}  // namespace precbench::flash
