// The forward kernel of flash attention: out = softmax(q k^T / sqrt(head_dim)) v, causal, and lse, without a score matrix
// in memory.
//
// A block of 4 warps owns 128 query rows of one head and loops over K and V in tiles of 64, double-buffered in
// shared memory (64 rows and tiles of 32 for heads wider than 128). With 32 rows per warp, a K or V fragment
// serves two row blocks; otherwise shared memory would limit the tensor cores. Scores, probabilities and the
// output stay in registers: the accumulators of q k^T, rounded to BF16, are the A operand of p v. Softmax is
// online, in FP32 and powers of two. Tile 0 holds column 0, which every row may see, so the running maximum is
// finite from the first tile on. Rows and columns beyond T are zeros in shared memory; the causal mask covers
// the columns, and the rows are not written. With a window or documents, blocks begin at the tile of their
// first row's first key, warps skip the tiles before theirs, and a row may see none of its first tile. At an
// offset a row may see no key, and a block visits at least one tile. The grid is [B heads, query blocks], the
// longest (last) query blocks first. Bytes: q and out once, k and v once per query block (from L2); 4 T^2
// heads head_dim / 2 FLOPs per sequence.
#pragma once

#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/attention/flash_queries.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::flash {

/// Keys per tile: with those of heads of 256 elements a block has 96 KiB of shared memory, which any GPU allows.
template <int kHeadDim>
inline constexpr int kForwardKeys = kHeadDim > 128 ? 32 : 64;

template <int kHeadDim, class Shape = FlashShape>
using Queries = QueryBlock<kHeadDim, kForwardKeys<kHeadDim>, Shape>;

template <int kHeadDim>
constexpr int forward_shared_bytes() {
  return Queries<kHeadDim>::kTileBytes + 2 * Queries<kHeadDim>::kStageBytes;
}

/// Online softmax state of a warp's rows. Element [m][half] of a row value belongs to row 16 m + 8 half +
/// lane / 4.
template <int kHeadDim, class Shape = FlashShape>
struct OnlineSoftmax {
  static constexpr int kM = kRowBlocks<kHeadDim>, kBlockKV = kForwardKeys<kHeadDim>;
  float o[kM][kHeadDim / 8][4] = {};  ///< sum of p v
  float row_max[kM][2], row_sum[kM][2] = {};

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) row_max[i / 2][i % 2] = -INFINITY;
  }

  /// Replaces a tile's scores by probabilities relative to the new maxima, and rescales the earlier sums to
  /// them.
  __device__ __forceinline__ void take(float (&s)[kM][kBlockKV / 8][4], float scale_log2) {
    float shift[kM][2], correction[kM][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = row_max[m][half];
#pragma unroll
        for (int n = 0; n < kBlockKV / 8; ++n)
          top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        moved |= top != row_max[m][half];
        // With a window or documents a row may see none of the first tile's keys.
        shift[m][half] = kHasFirstKeys<Shape> && top == -INFINITY ? 0.0f : top * scale_log2;
        correction[m][half] = exp2_approx(row_max[m][half] * scale_log2 - shift[m][half]);
        row_max[m][half] = top;
      }
    if (__any_sync(0xffffffff, moved)) rescale(correction);  // rare once a row has seen some keys
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kBlockKV / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[m][n][e] = exp2_approx(s[m][n][e] * scale_log2 - shift[m][e / 2]);
          row_sum[m][e / 2] += s[m][n][e];
        }
  }

  __device__ __forceinline__ void rescale(const float (&correction)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_sum[m][half] *= correction[m][half];
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          o[m][n][2 * half] *= correction[m][half];
          o[m][n][2 * half + 1] *= correction[m][half];
        }
      }
  }

  /// Writes lse, of [T] of the head, and stores o / row_sum in the warp's own rows of the q tile.
  __device__ __forceinline__ void finish(float* lse_head, std::uint32_t q_tile,
                                         const Queries<kHeadDim, Shape>& block, const Shape& shape) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = row_sum[m][half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        const int row = block.kWarpRows * block.warp + 16 * m + 8 * half + block.lane / 4;
        if (block.lane % 4 == 0 && block.first_q + row < shape.T)
          lse_head[block.first_q + row] = row_max[m][half] * shape.softmax_scale() + logf(sum);
        const float inverse = kOffset<Shape> && sum == 0 ? 0 : 1 / sum;  // a row may see no key
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n)
          store_word(q_tile + Tile<kHeadDim>::offset(row, n) + block.lane % 4 * 4,
                     pack_bf16(o[m][n][2 * half] * inverse, o[m][n][2 * half + 1] * inverse));
      }
  }
};

template <int kHeadDim, class Shape>
__global__ __launch_bounds__(Queries<kHeadDim>::kThreads,
                             2) void flash_forward_kernel(__nv_bfloat16* out, float* lse,
                                                          const __nv_bfloat16* qkv, Shape shape) {
  wait_for_work_before();
  using Rows = Tile<kHeadDim>;
  constexpr int kM = kRowBlocks<kHeadDim>, kBlockKV = kForwardKeys<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t q_tile = shared_address(shared_memory);
  const std::uint32_t kv_tiles = q_tile + Queries<kHeadDim>::kTileBytes;

  const Queries<kHeadDim, Shape> block(shape);
  const __nv_bfloat16* fused = qkv + block.first_token * shape.qkv_stride;
  block.fetch_rows(q_tile, fused + shape.q_column(block.head), shape.qkv_stride, shape);
  const __nv_bfloat16* keys = fused;
  if constexpr (kOffset<Shape>) keys = key_rows(shape, shape.kv, block.batch);
  block.fetch_kv(kv_tiles, keys, block.first_tile, shape);

  [[maybe_unused]] int first_keys[kM][2];
  if constexpr (kHasFirstKeys<Shape>) block.load_first_keys(first_keys, shape);
  OnlineSoftmax<kHeadDim, Shape> softmax;
  block.walk(kv_tiles, keys, shape, [&](int first_kv, std::uint32_t k_tile, std::uint32_t v_tile) {
    float s[kM][kBlockKV / 8][4] = {};
    multiply_rows<Rows>(s, q_tile, block.kWarpRows * block.warp, k_tile, 0);
    if constexpr (kCapped<Shape>) apply_softcap(s, shape);
    if (block.queries.masks_end(shape, first_kv)) {
      apply_causal_mask<false>(s, block.queries.place, first_kv, -INFINITY);
      if constexpr (kOffset<Shape>) apply_last_key_mask(s, first_kv, shape.keys(), -INFINITY);
    }
    if constexpr (kHasFirstKeys<Shape>)
      if (block.queries.masks_begin(first_kv)) apply_first_key_mask(s, first_keys, first_kv, -INFINITY);
    softmax.take(s, shape.softmax_scale_log2());
    multiply_scores<Rows>(softmax.o, s, v_tile);
  });

  softmax.finish(lse + static_cast<std::int64_t>(blockIdx.x) * shape.T, q_tile, block, shape);
  block.store_rows(out + block.first_token * shape.out_stride + block.head * shape.head_dim, shape.out_stride,
                   q_tile, shape);
}

/// Tensors of one call.
struct ForwardData {
  __nv_bfloat16* out;
  float* lse;
  const __nv_bfloat16* qkv;
};

template <int kHeadDim, class Shape>
void launch_forward_kernel(const ForwardData& data, const AttentionShape& s, const Shape& shape,
                           cudaStream_t stream) {
  constexpr int kBytes = forward_shared_bytes<kHeadDim>();
  const auto kernel = flash_forward_kernel<kHeadDim, Shape>;
  PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  using Block = Queries<kHeadDim>;
  const dim3 grid(s.B * s.heads, (s.T + Block::kBlockQ - 1) / Block::kBlockQ);
  kernel<<<grid, Block::kThreads, kBytes, stream>>>(data.out, data.lse, data.qkv, shape);
}

template <class Shape>
void launch_forward(const ForwardData& data, const AttentionShape& s, const Shape& shape,
                    cudaStream_t stream) {
  with_tile_width(s.head_dim,
                  [&](auto width) { launch_forward_kernel<width.value>(data, s, shape, stream); });
}

/// Launch the forward kernel with soft-capped scores (flash_softcap_forward.cu), and with an offset, also soft-capped
/// (flash_offset_forward.cu).
void launch_softcap_forward(const ForwardData& data, const AttentionShape& s, const DocumentMask& documents,
                            cudaStream_t stream);
void launch_offset_forward(const ForwardData& data, const AttentionShape& s, const OffsetShape& shape,
                           cudaStream_t stream);

}  // namespace precbench::flash
