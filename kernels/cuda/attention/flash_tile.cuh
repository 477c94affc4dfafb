// Building blocks of the flash attention kernels: BF16 tiles in shared memory, and wrappers of warp-level
// tensor-core instructions (PTX, compute capability 8.0 and newer).
//
// A tile is [rows, kCols] with its 16-byte chunks permuted within each row, so that the eight rows of one
// ldmatrix matrix are in different banks. A fragment load reads the 16 x 16 block at row r, column c as four
// 8 x 8 matrices, one register each. The order is chosen so that an MMA finds its operands in adjacent
// registers (PTX ISA, mma.m16n8k16):
//   load_a             A of rows r.., k = c..:                 registers 0 to 3
//   load_b             B of k = c.., n = r.. and n = r + 8..:  registers 0 1 and 2 3
//   load_b_transposed  B of k = r.., n = c.. and n = c + 8..:  registers 0 1 and 2 3
// An accumulator holds, in lane l, row l / 4 (elements 0 1) and row l / 4 + 8 (2 3), columns 2 (l % 4) and
// the next.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/softcap.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/device/device.h"
#include "kernels/gpu/flash_tiles.h"

namespace precbench::flash {

using cuda::exp2_approx;

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// cp.async: copies 16 bytes from global to shared memory without registers; zeros if not `valid`.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_4(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

/// bar.sync of `threads` threads of the block at named barrier `id`; 0 is __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// c[16,8] += a[16,16] b[16,8], BF16 in, FP32 sums.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Packs two values rounded to BF16 in one word, the first in its low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ void store_word(std::uint32_t address, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ uint4 load_chunk(std::uint32_t address) {
  uint4 chunk;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "r"(address)
               : "memory");
  return chunk;
}

__device__ __forceinline__ float2 load_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

/// Converts the accumulators of two adjacent 8-column blocks to the A operand of an MMA over those 16
/// columns.
__device__ __forceinline__ void accumulators_to_a_operand(std::uint32_t (&a)[4], const float (&left)[4],
                                                          const float (&right)[4]) {
  a[0] = pack_bf16(left[0], left[1]);
  a[1] = pack_bf16(left[2], left[3]);
  a[2] = pack_bf16(right[0], right[1]);
  a[3] = pack_bf16(right[2], right[3]);
}

template <int kCols_>
struct Tile {
  static constexpr int kCols = kCols_;
  static_assert(kCols % 32 == 0, "a row is whole groups of four chunks");
  static constexpr int kChunks = kCols / 8;
  static constexpr int kRowBytes = kCols * 2;

  __host__ __device__ static constexpr int bytes(int rows) { return rows * kRowBytes; }

  __device__ static int swizzle(int row) { return kCols % 64 == 0 ? row & 7 : row >> 1 & 3; }
  __device__ static int offset(int row, int chunk) { return row * kRowBytes + (chunk ^ swizzle(row)) * 16; }

  __device__ static void load_a(std::uint32_t (&r)[4], std::uint32_t tile, int row, int block) {
    const int lane = threadIdx.x & 31;
    ldmatrix_x4(r, block_address(tile, row, block, lane & 15, lane >> 4));
  }
  __device__ static void load_b(std::uint32_t (&r)[4], std::uint32_t tile, int row, int block) {
    const int lane = threadIdx.x & 31;
    ldmatrix_x4(r, block_address(tile, row, block, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1));
  }
  __device__ static void load_b_transposed(std::uint32_t (&r)[4], std::uint32_t tile, int row, int block) {
    const int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(r, block_address(tile, row, block, lane & 15, lane >> 4));
  }

  /// Returns the address of one chunk in the 16 x 16 block at row `row` (a multiple of 16), columns 16 *
  /// block. Only the low bits of a chunk's index are permuted: the rest, and the row, stay plain sums that
  /// unrolled loops fold into the instruction.
  __device__ static std::uint32_t block_address(std::uint32_t tile, int row, int block, int lane_row,
                                                int lane_chunk) {
    constexpr int kPermuted = kCols % 64 == 0 ? 4 : 2;  // blocks
    const int permuted = (block % kPermuted * 32) ^ ((lane_chunk ^ swizzle(lane_row)) * 16);
    return tile + lane_row * kRowBytes + permuted + block / kPermuted * kPermuted * 32 + row * kRowBytes;
  }

  /// Starts copying rows [first, first + kRows) of a matrix with `limit` rows and `cols` columns; zeros
  /// beyond both.
  template <int kRows, int kThreads>
  __device__ static void fetch(std::uint32_t tile, const __nv_bfloat16* matrix, std::int64_t stride,
                               int first, int limit, int cols) {
    static_assert(kRows * kChunks % kThreads == 0, "every thread copies as many chunks");
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int index = threadIdx.x + i * kThreads;
      const int row = index / kChunks, chunk = index % kChunks;
      const bool valid = first + row < limit && chunk * 8 < cols;
      const __nv_bfloat16* from = matrix + (valid ? (first + row) * stride + chunk * 8 : 0);
      cp_async_16(tile + offset(row, chunk), from, valid);
    }
  }
};

// ---- warp-level GEMMs. c[m][n] are the accumulators of rows 16 m.., columns 8 n..; `first`: row or 16-column
// block of a tile at which a GEMM starts.

/// Number of blocks of 16 rows per warp. With two a fragment of `b` serves two row blocks; wider heads leave registers for
/// one.
template <int kHeadDim>
inline constexpr int kRowBlocks = kHeadDim > 128 ? 1 : 2;

/// c += a b^T over the tiles' columns, of rows first_a.. of a with rows first_b.. of b: q k^T, dout v^T, or
/// the same transposed.
template <class Rows, int kM, int kBlocks>
__device__ __forceinline__ void multiply_rows(float (&c)[kM][kBlocks][4], std::uint32_t a_tile, int first_a,
                                              std::uint32_t b_tile, int first_b) {
#pragma unroll
  for (int d = 0; d < Rows::kCols / 16; ++d) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) Rows::load_a(a[m], a_tile, first_a + 16 * m, d);
#pragma unroll
    for (int n = 0; n < kBlocks / 2; ++n) {
      std::uint32_t b[4];
      Rows::load_b(b, b_tile, first_b + 16 * n, d);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(c[m][2 * n], a[m], b[0], b[1]);
        mma_m16n8k16(c[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// c += a b for one block of 16 of the sum: rows 16 k.. of b, columns from the block first_b on.
template <class Rows, int kM, int kBlocks>
__device__ __forceinline__ void multiply_columns(float (&c)[kM][kBlocks][4], const std::uint32_t (&a)[kM][4],
                                                 std::uint32_t b_tile, int k, int first_b) {
#pragma unroll
  for (int d = 0; d < kBlocks / 2; ++d) {
    std::uint32_t b[4];
    Rows::load_b_transposed(b, b_tile, 16 * k, first_b + d);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      mma_m16n8k16(c[m][2 * d], a[m], b[0], b[1]);
      mma_m16n8k16(c[m][2 * d + 1], a[m], b[2], b[3]);
    }
  }
}

/// c += p b, with p in accumulators of an earlier GEMM, rounded to BF16: p v, ds k.
template <class Rows, int kM, int kKeyBlocks, int kBlocks>
__device__ __forceinline__ void multiply_scores(float (&c)[kM][kBlocks][4],
                                                const float (&p)[kM][kKeyBlocks][4], std::uint32_t b_tile) {
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) accumulators_to_a_operand(a[m], p[m][2 * k], p[m][2 * k + 1]);
    multiply_columns<Rows>(c, a, b_tile, k, 0);
  }
}

/// Return the row and column of element e of the accumulators c[m][n].
__device__ __forceinline__ int accumulator_row(int m, int e) {
  const int lane = threadIdx.x % 32;
  return 16 * m + lane / 4 + e / 2 * 8;
}
__device__ __forceinline__ int accumulator_column(int n, int e) {
  const int lane = threadIdx.x % 32;
  return 8 * n + lane % 4 * 2 + e % 2;
}

/// Causal mask: sets the elements of keys after their query. first_row and first_column: position in the
/// sequence of the GEMM's result; its rows are the queries, or the keys.
template <bool kRowsAreKeys, int kM, int kBlocks>
__device__ __forceinline__ void apply_causal_mask(float (&x)[kM][kBlocks][4], int first_row, int first_column,
                                                  float value) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + accumulator_row(m, e), column = first_column + accumulator_column(n, e);
        if (kRowsAreKeys ? row > column : column > row) x[m][n][e] = value;
      }
}

/// The same with soft-capped scores, cap tanh(scale q k / cap). Softmax takes the hyperbolic tangents.
template <class Base>
struct CappedShape : Base {
  float cap, cap_log2;
  float exponent;  ///< of cuda::tanh_of

  constexpr float softmax_scale() const { return cap; }
  constexpr float softmax_scale_log2() const { return cap_log2; }

  __device__ float tanh_of(float qk) const { return cuda::tanh_of(qk, exponent); }
};

template <class Shape>
inline constexpr bool kCapped = false;
template <class Base>
inline constexpr bool kCapped<CappedShape<Base>> = true;

/// Replaces q k by tanh(scale q k / cap).
template <class Shape, int kM, int kBlocks>
__device__ __forceinline__ void apply_softcap(float (&s)[kM][kBlocks][4], const Shape& shape) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) cuda::apply_softcap(s[m][n], shape.exponent);
}

/// Sets the elements of keys before the first one that their query sees. Rows are the queries; `first` has those of the
/// thread's rows, [m][half] of row 16 m + 8 half + lane / 4. first_column: position of the GEMM's first key.
template <int kM, int kBlocks>
__device__ __forceinline__ void apply_first_key_mask(float (&x)[kM][kBlocks][4], const int (&first)[kM][2],
                                                     int first_column, float value) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first_column + accumulator_column(n, e) < first[m][e / 2]) x[m][n][e] = value;
}

/// Sets the elements of keys behind the last one. Columns are the keys; first_column: as above.
template <int kM, int kBlocks>
__device__ __forceinline__ void apply_last_key_mask(float (&x)[kM][kBlocks][4], int first_column, int keys,
                                                    float value) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first_column + accumulator_column(n, e) >= keys) x[m][n][e] = value;
}

/// Returns sequence `batch` of a shape's kv or dkv.
__device__ __forceinline__ __nv_bfloat16* key_rows(const OffsetShape& shape, const void* rows, int batch) {
  return static_cast<__nv_bfloat16*>(const_cast<void*>(rows)) +
         static_cast<std::int64_t>(batch) * shape.T_k * shape.kv_stride;
}

/// Starts copying kRows rows of a sequence's K, from row `first` on, followed by the same rows of its V. `keys`: the
/// sequence's rows of keys.
template <class Rows, int kRows, int kThreads, class Shape>
__device__ __forceinline__ void fetch_kv(std::uint32_t tile, const __nv_bfloat16* keys, int kv_head,
                                         int first, const Shape& shape) {
  Rows::template fetch<kRows, kThreads>(tile, keys + shape.k_column(kv_head), shape.key_stride(), first,
                                        shape.keys(), shape.head_dim);
  Rows::template fetch<kRows, kThreads>(tile + Rows::bytes(kRows), keys + shape.v_column(kv_head),
                                        shape.key_stride(), first, shape.keys(), shape.head_dim);
}

/// Returns the shape of keys in rows of their own, or in the fused rows if `kv` is empty. Backward alone has dqkv and dkv.
inline OffsetShape offset_shape_of(const AttentionShape& s, const DocumentMask& documents, const Tensor& qkv,
                                   const Tensor& kv, const Tensor& dqkv = {}, const Tensor& dkv = {}) {
  const auto keys_of = [&](const Tensor& own, const Tensor& fused) -> void* {
    if (!own.empty()) return own.data;
    return fused.empty() ? nullptr : fused.as<__nv_bfloat16>() + s.q_width();
  };
  OffsetShape shape =
      offset_shape(s, documents.empty() ? nullptr : documents.first_key.as<const int>(), documents.key_start);
  shape.kv_stride = kv.empty() ? s.qkv_width() : s.kv_width();
  shape.kv = keys_of(kv, qkv);
  shape.dkv = keys_of(dkv, dqkv);
  return shape;
}

/// Returns true if a call needs OffsetShape, which is a little slower than the others.
inline bool needs_offset_shape(const AttentionShape& s, const Tensor& kv, const DocumentMask& documents) {
  return !kv.empty() || !s.square() || (s.window != 0 && s.softcap == 0 && documents.empty());
}

template <class Base>
CappedShape<Base> capped_shape(const Base& base, const AttentionShape& s) {
  const double cap = s.softcap, scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  return {base, s.softcap, static_cast<float>(cap * kLog2E), cuda::tanh_exponent(scale, cap)};
}

/// Calls body with the shape of soft-capped scores, in a window or within documents.
template <class Body>
void with_capped_shape(const AttentionShape& s, const DocumentMask& documents, Body&& body) {
  if (documents.empty()) return body(capped_shape(window_shape(s), s));
  body(capped_shape(packed_shape(s, documents.first_key.as<const int>()), s));
}

constexpr int kMaxHeadDim = 256;

/// Calls body with the tile width (an integral_constant) for a head_dim; the extra columns are zeros.
template <class Body>
void with_tile_width(std::int64_t head_dim, Body&& body) {
  if (head_dim <= 32) return body(std::integral_constant<int, 32>());
  if (head_dim <= 64) return body(std::integral_constant<int, 64>());
  if (head_dim <= 96) return body(std::integral_constant<int, 96>());
  if (head_dim <= 128) return body(std::integral_constant<int, 128>());
  if (head_dim <= 192) return body(std::integral_constant<int, 192>());
  body(std::integral_constant<int, kMaxHeadDim>());
}

}  // namespace precbench::flash
