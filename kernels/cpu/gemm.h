// The FP32 GEMM under every matmul, router and attention of the CPU device.
//
// Its results depend only on the numbers. Each element of C is one sum over k in an order determined by K
// alone. So a row of C has the same bits whatever other rows and columns there are, however the GEMM is tiled
// or shared between threads, on every CPU that runs the binary, and by every compiler. A BLAS guarantees none of
// this: it picks kernels by CPU and by shape, and their edges round differently.
#pragma once

#include <cstdint>
#include <span>

namespace precbench::cpu {

/// An FP32 operand [rows, k], stored as [k, rows] if `transposed`.
struct Matrix {
  const float* data;
  std::int64_t stride;  ///< elements from one row in memory to the next
  bool transposed;
};

/// Largest number of products summed in a register before their sum is added to C.
constexpr std::int64_t kGemmDepth = 320;

/// Returns how many of the `left` products of a sum the next block takes. The last two blocks share the rest
/// evenly, in multiples of 16, so that no block is short. OpenBLAS's AVX-512 kernels, used for the committed
/// CPU records, have the same blocks.
constexpr std::int64_t gemm_block_depth(std::int64_t left) {
  if (left >= 2 * kGemmDepth) return kGemmDepth;
  return left > kGemmDepth ? (left / 2 + 15) / 16 * 16 : left;
}

/// Computes C[m, n] = alpha A B^T, or C += alpha A B^T with `accumulate`, for A [m, k] and B [n, k]; rows of
/// C are `c_stride` elements apart. An element is ((C + alpha s_0) + alpha s_1) + ... with s_b the sum of
/// block b, whose products are added one after another. If the compiler's target has FMA, each of these
/// additions is one. Runs in the calling thread.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Matrix& a, const Matrix& b,
          bool accumulate, float* c, std::int64_t c_stride);

/// gemm() for one vector width. The widths differ in speed, not in results.
struct GemmVariant {
  int bits;
  decltype(&gemm) run;
};

/// Returns the variants that this CPU can execute, the widest last. gemm() is the widest, or the widest of at
/// most PRECBENCH_VECTOR_BITS if a test sets that environment variable.
std::span<const GemmVariant> gemm_variants();

}  // namespace precbench::cpu
