// Flash attention, forward: out = softmax(q k^T / sqrt(head_dim)) v, causal, and lse, without a score matrix
// in memory.
//
// A block of 4 warps owns 128 query rows of one head (32 rows per warp: a K or V fragment then serves two row
// blocks, without which shared memory would limit the tensor cores) and walks over K and V in tiles of 64,
// two of them in shared memory: one is used while the other is copied in. Scores, probabilities and the
// output stay in registers: the accumulators of q k^T are, rounded to BF16, the A operand of p v. Softmax is
// online, in FP32 and powers of two. Tile 0 holds column 0, which every row may see, so the running maximum
// is finite from the first tile on. Rows and columns beyond T are zeros in shared memory; causality masks the
// columns, and the rows are not written. The grid is [B heads, query blocks], the longest (last) query blocks
// first. Bytes: q and out once, k and v once per query block (from L2); 4 T^2 heads head_dim / 2 FLOPs per
// sequence.
#include "kernels/cuda/attention_flash.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/check.h"

namespace precbench {
namespace {

using namespace flash;

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kBlockQ = 32 * kWarps, kBlockKV = 64;

template <int kHeadDim>
constexpr int forward_shared_bytes() {
  return Tile<kHeadDim>::bytes(kBlockQ + 4 * kBlockKV);
}

template <int kHeadDim>
__global__ __launch_bounds__(kThreads, 2) void flash_forward_kernel(__nv_bfloat16* out, float* lse,
                                                                    const __nv_bfloat16* qkv,
                                                                    FlashShape shape) {
  using Rows = Tile<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const std::uint32_t q_tile = shared_address(shared_memory);
  const std::uint32_t kv_tiles = q_tile + Rows::bytes(kBlockQ);  // K0 V0 K1 V1
  constexpr int kStageBytes = 2 * Rows::bytes(kBlockKV);

  const int batch = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads, kv_head = head / shape.group();
  const int first_q = (gridDim.y - 1 - blockIdx.y) * kBlockQ;
  const int tiles = (min(first_q + kBlockQ, shape.T) + kBlockKV - 1) / kBlockKV;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_q = first_q + 32 * warp;

  const __nv_bfloat16* fused = qkv + static_cast<std::int64_t>(batch) * shape.T * shape.qkv_stride;
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
  fetch_kv(0);

  float o[2][kHeadDim / 8][4] = {};
  float row_max[2][2], row_sum[2][2] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) row_max[i / 2][i % 2] = -INFINITY;

  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies();
    __syncthreads();  // the tile is there, and nobody reads the other one any more
    if (tile + 1 < tiles) fetch_kv(tile + 1);
    const int first_kv = tile * kBlockKV;
    if (first_kv > warp_q + 31) continue;  // all of it after this warp's rows
    const std::uint32_t k_tile = kv_tiles + tile % 2 * kStageBytes;
    const std::uint32_t v_tile = k_tile + Rows::bytes(kBlockKV);

    float s[2][kBlockKV / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) Rows::load_a(a[m], q_tile, 32 * warp + 16 * m, d);
#pragma unroll
      for (int n = 0; n < kBlockKV / 16; ++n) {
        std::uint32_t b[4];
        Rows::load_b(b, k_tile, 16 * n, d);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(s[m][2 * n], a[m], b[0], b[1]);
          multiply_add(s[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }

    if (first_kv + kBlockKV - 1 > warp_q) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < kBlockKV / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int row = warp_q + 16 * m + lane / 4 + e / 2 * 8;
            const int column = first_kv + 8 * n + lane % 4 * 2 + e % 2;
            if (column > row) s[m][n][e] = -INFINITY;
          }
    }

    float shift[2][2], correction[2][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = row_max[m][half];
#pragma unroll
        for (int n = 0; n < kBlockKV / 8; ++n)
          top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        moved |= top != row_max[m][half];
        shift[m][half] = top * shape.scale_log2;
        correction[m][half] = exp2_approx(row_max[m][half] * shape.scale_log2 - shift[m][half]);
        row_max[m][half] = top;
      }
    if (__any_sync(0xffffffff, moved)) {  // seldom, once a row has seen some keys
#pragma unroll
      for (int m = 0; m < 2; ++m)
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
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kBlockKV / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[m][n][e] = exp2_approx(s[m][n][e] * shape.scale_log2 - shift[m][e / 2]);
          row_sum[m][e / 2] += s[m][n][e];
        }

#pragma unroll
    for (int k = 0; k < kBlockKV / 16; ++k) {
      std::uint32_t p[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) accumulators_to_operand(p[m], s[m][2 * k], s[m][2 * k + 1]);
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        std::uint32_t b[4];
        Rows::load_b_transposed(b, v_tile, 16 * k, d);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(o[m][2 * d], p[m], b[0], b[1]);
          multiply_add(o[m][2 * d + 1], p[m], b[2], b[3]);
        }
      }
    }
  }

  // The warp's output goes through its own rows of the q tile, so that it leaves in whole chunks.
  float* lse_head = lse + static_cast<std::int64_t>(blockIdx.x) * shape.T;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = row_sum[m][half];
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
      const int row = 32 * warp + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && first_q + row < shape.T)
        lse_head[first_q + row] = row_max[m][half] * shape.scale + logf(sum);
      const float inverse = 1 / sum;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n)
        store_word(q_tile + Rows::offset(row, n) + lane % 4 * 4,
                   pack_bf16(o[m][n][2 * half] * inverse, o[m][n][2 * half + 1] * inverse));
    }
  __syncwarp();
  __nv_bfloat16* out_head =
      out + static_cast<std::int64_t>(batch) * shape.T * shape.out_stride + head * shape.head_dim;
#pragma unroll
  for (int i = 0; i < Rows::kChunks; ++i) {
    const int index = lane + 32 * i;
    const int row = 32 * warp + index / Rows::kChunks, chunk = index % Rows::kChunks;
    if (first_q + row < shape.T && chunk * 8 < shape.head_dim)
      *reinterpret_cast<uint4*>(out_head + (first_q + row) * shape.out_stride + chunk * 8) =
          load_chunk(q_tile + Rows::offset(row, chunk));
  }
}

template <int kHeadDim>
void launch_forward(__nv_bfloat16* out, float* lse, const __nv_bfloat16* qkv, const AttentionShape& s,
                    cudaStream_t stream) {
  constexpr int kBytes = forward_shared_bytes<kHeadDim>();
  PRECBENCH_CHECK(cudaFuncSetAttribute(flash_forward_kernel<kHeadDim>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(s.B * s.heads, (s.T + kBlockQ - 1) / kBlockQ);
  flash_forward_kernel<kHeadDim><<<grid, kThreads, kBytes, stream>>>(out, lse, qkv, flash_shape(s));
}

}  // namespace

std::string flash_attention_refusal(const AttentionShape& s) {
  if (s.head_dim % 8 == 0 && s.head_dim <= kMaxHeadDim) return "";
  return "our attention kernels take a head_dim that is a multiple of 8 and at most 128, this one is " +
         std::to_string(s.head_dim);
}

void flash_attention(const Tensor& out, const Tensor& lse, const Tensor& qkv, const AttentionShape& s,
                     CUstream_st* stream) {
  with_tile_width(s.head_dim, [&](auto width) {
    launch_forward<width.value>(out.as<__nv_bfloat16>(), lse.as<float>(), qkv.as<const __nv_bfloat16>(), s,
                                stream);
  });
}

}  // namespace precbench
