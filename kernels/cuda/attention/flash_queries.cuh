// Shared by the forward and the dq kernel: a block of four warps owns 128 query rows of one head, 32 per warp
// (64 and 16 of heads wider than 128), and loops over the K and V tiles that these may see, double-buffered in
// shared memory. The grid is [B heads, query blocks], the longest (last) query blocks first.
#pragma once

#include "kernels/cuda/attention/flash_tile.cuh"

namespace precbench::flash {

/// `Shape_`: FlashShape, or a shape with first keys (a window, documents), of which a block visits only the tiles with keys
/// that its queries see.
template <int kHeadDim, int kBlockKV_, class Shape_ = FlashShape>
struct QueryBlock {
  using Shape = Shape_;
  using Rows = Tile<kHeadDim>;
  static constexpr int kBlockKV = kBlockKV_;
  static constexpr int kM = kRowBlocks<kHeadDim>, kWarpRows = 16 * kM;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlockQ = kWarpRows * kWarps;
  static constexpr int kTileBytes = Rows::bytes(kBlockQ), kStageBytes = 2 * Rows::bytes(kBlockKV);

  const int batch, head, kv_head;
  const int first_q;  ///< row of the sequence
  const std::int64_t first_token;
  int tiles;           ///< K and V tiles up to the last that the rows see
  int first_tile = 0;  ///< the first of them
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_q = first_q + kWarpRows * warp;
  const WarpQueries<kWarpRows, kBlockKV, Shape> queries;

  __device__ __forceinline__ explicit QueryBlock(const Shape& shape)
      : batch(blockIdx.x / shape.heads),
        head(blockIdx.x % shape.heads),
        kv_head(head / shape.group()),
        first_q((gridDim.y - 1 - blockIdx.y) * kBlockQ),
        first_token(static_cast<std::int64_t>(batch) * shape.T),
        tiles(end_key_tile<kBlockQ, kBlockKV>(shape, first_q)),
        queries(shape, first_token, warp_q) {
    if constexpr (kHasFirstKeys<Shape>) first_tile = first_key_tile<kBlockKV>(shape, first_token, first_q);
    if constexpr (kOffset<Shape>) tiles = greater(tiles, first_tile + 1);  // its copy has been started
  }

  /// Writes the first keys of the thread's rows (apply_first_key_mask).
  __device__ __forceinline__ void load_first_keys(int (&first)[kM][2], const Shape& shape) const {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int row = warp_q + 16 * (i / 2) + 8 * (i % 2) + lane / 4;
      first[i / 2][i % 2] = shape.first_key(first_token, min(row, shape.T - 1));
    }
  }

  /// Starts copying the block's rows of a matrix, from the head's first column on.
  __device__ __forceinline__ void fetch_rows(std::uint32_t tile, const __nv_bfloat16* matrix,
                                             std::int64_t stride, const FlashShape& shape) const {
    Rows::template fetch<kBlockQ, kThreads>(tile, matrix, stride, first_q, shape.T, shape.head_dim);
  }

  /// Starts copying a tile of K and V, from the sequence's rows of keys, into its stage of kv_tiles (K0 V0 K1
  /// V1).
  __device__ __forceinline__ void fetch_kv(std::uint32_t kv_tiles, const __nv_bfloat16* keys, int tile,
                                           const Shape& shape) const {
    flash::fetch_kv<Rows, kBlockKV, kThreads>(kv_tiles + tile % 2 * kStageBytes, keys, kv_head,
                                              tile * kBlockKV, shape);
    cp_async_commit_group();
  }

  /// Calls step(first_kv, k_tile, v_tile) for every tile that the warp's rows see, in order; the copy of
  /// first_tile must have been started.
  template <class Step>
  __device__ __forceinline__ void walk(std::uint32_t kv_tiles, const __nv_bfloat16* keys, const Shape& shape,
                                       Step&& step) const {
    for (int tile = first_tile; tile < tiles; ++tile) {
      cp_async_wait_all();
      __syncthreads();  // the tile has arrived, and the other one is no longer read
      if (tile + 1 < tiles) fetch_kv(kv_tiles, keys, tile + 1, shape);
      const int first_kv = tile * kBlockKV;
      if (queries.skips(first_kv)) continue;
      const std::uint32_t k_tile = kv_tiles + tile % 2 * kStageBytes;
      step(first_kv, k_tile, k_tile + Rows::bytes(kBlockKV));
      __syncwarp();  // all lanes have read the warp's rows of q, which results replace after the last tile
    }
  }

  /// Writes the warp's rows of a result tile in whole chunks.
  __device__ __forceinline__ void store_rows(__nv_bfloat16* matrix, std::int64_t stride, std::uint32_t tile,
                                             const FlashShape& shape) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWarpRows * Rows::kChunks / 32; ++i) {
      const int index = lane + 32 * i;
      const int row = kWarpRows * warp + index / Rows::kChunks, chunk = index % Rows::kChunks;
      if (first_q + row < shape.T && chunk * 8 < shape.head_dim)
        *reinterpret_cast<uint4*>(matrix + (first_q + row) * stride + chunk * 8) =
            load_chunk(tile + Rows::offset(row, chunk));
    }
  }
};

}  // namespace precbench::flash
