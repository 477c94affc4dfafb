// GotoBLAS's loops (Goto and van de Geijn 2008): packed panels of B stay in the outer caches, panels of A in
// the inner ones, and a kernel holds a block of C in registers. gemm.h defines the result.
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kernels/numerics/multiply_add.h"

#ifdef __FMA__
#include <immintrin.h>
#endif

namespace precbench::cpu {
namespace {

using Vector128 [[gnu::vector_size(16)]] = float;
using Vector256 [[gnu::vector_size(32)]] = float;
using Vector512 [[gnu::vector_size(64)]] = float;

constexpr std::int64_t kPanelRows = 96;   // of A, packed at a time: a multiple of every kernel's rows
constexpr std::int64_t kPanelCols = 512;  // of B

template <class Vector>
constexpr int kLanes = sizeof(Vector) / sizeof(float);

/// A kernel's block of C and the code that updates it.
struct Block {
  float* c;
  std::int64_t stride;
  float alpha;
};

using Kernel = void (*)(std::int64_t k, const float* a, const float* b, const Block& block);

/// Kernels that overwrite and kernels that add, for blocks of 1 to kRows rows and 1 to kVectors vectors.
template <int kRows, int kVectors>
struct Kernels {
  Kernel of[2][kRows][kVectors];
};

/// Copies a 4 x 4 block, transposed.
void transpose_4x4(float* out, std::int64_t out_stride, const float* in, std::int64_t in_stride) {
  using Unaligned [[gnu::aligned(4), gnu::may_alias]] = Vector128;
  Vector128 row[4];
  for (int i = 0; i < 4; ++i) row[i] = *reinterpret_cast<const Unaligned*>(in + i * in_stride);
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p)
    *reinterpret_cast<Unaligned*>(out + p * out_stride) =
        Vector128{row[0][p], row[1][p], row[2][p], row[3][p]};
}

/// Packs `count` vectors from `first` on, with k elements from `from` on, as [k][width]; zeros beyond count.
void pack(float* out, const Matrix& x, std::int64_t first, std::int64_t count, std::int64_t width,
          std::int64_t from, std::int64_t k) {
  for (std::int64_t p = 0; count < width && p < k; ++p)
    std::fill(out + p * width + count, out + (p + 1) * width, 0.0f);
  if (x.transposed) {
    for (std::int64_t p = 0; p < k; ++p)
      std::copy_n(x.data + (from + p) * x.stride + first, count, out + p * width);
    return;
  }
  const float* in = x.data + first * x.stride + from;
  const std::int64_t fours = count / 4 * 4, whole = k / 4 * 4;
  for (std::int64_t p = 0; p < whole; p += 4)
    for (std::int64_t i = 0; i < fours; i += 4)
      transpose_4x4(out + p * width + i, width, in + i * x.stride + p, x.stride);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t p = i < fours ? whole : 0; p < k; ++p) out[p * width + i] = in[i * x.stride + p];
}

/// Runs a kernel on a block whose `cols` columns end within a vector: on a copy as wide as the kernel.
void run_at_edge(Kernel kernel, std::int64_t k, const float* a, const float* b, const Block& block,
                 std::int64_t rows, std::int64_t cols, bool add) {
  constexpr std::int64_t kWidest = 32, kMostRows = 8;
  float copy[kMostRows * kWidest] = {};
  for (std::int64_t i = 0; add && i < rows; ++i)
    std::copy_n(block.c + i * block.stride, cols, copy + i * kWidest);
  kernel(k, a, b, {copy, kWidest, block.alpha});
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(copy + i * kWidest, cols, block.c + i * block.stride);
}

/// gemm() with kernels of kRows x kVectors.
template <class Vector, int kRows, int kVectors>
void run(const Kernels<kRows, kVectors>& kernels, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
         const Matrix& a, const Matrix& b, bool accumulate, float* c, std::int64_t c_stride) {
  constexpr std::int64_t kVector = kLanes<Vector>, kCols = kVectors * kVector;
  static_assert(kPanelRows % kRows == 0 && kPanelCols % kCols == 0);
  if (k == 0 && !accumulate)
    for (std::int64_t i = 0; i < m; ++i) std::fill_n(c + i * c_stride, n, 0.0f);
  // 0.8 MiB per thread, kept until the thread ends.
  thread_local std::vector<float> packed_a(kPanelRows * kGemmDepth), packed_b(kPanelCols * kGemmDepth);
  for (std::int64_t col = 0; col < n; col += kPanelCols)
    for (std::int64_t from = 0, depth = 0; from < k; from += depth) {
      const std::int64_t cols = std::min(kPanelCols, n - col);
      depth = gemm_block_depth(k - from);
      for (std::int64_t j = 0; j < cols; j += kCols) {
        const std::int64_t count = std::min(kCols, cols - j);
        const std::int64_t width = (count + kVector - 1) / kVector * kVector;
        pack(packed_b.data() + j * depth, b, col + j, count, width, from, depth);
      }
      for (std::int64_t row = 0; row < m; row += kPanelRows) {
        const std::int64_t rows = std::min(kPanelRows, m - row);
        for (std::int64_t i = 0; i < rows; i += kRows) {
          const std::int64_t count = std::min<std::int64_t>(kRows, rows - i);
          pack(packed_a.data() + i * depth, a, row + i, count, count, from, depth);
        }
        for (std::int64_t j = 0; j < cols; j += kCols)
          for (std::int64_t i = 0; i < rows; i += kRows) {
            const std::int64_t r = std::min<std::int64_t>(kRows, rows - i), w = std::min(kCols, cols - j);
            const bool add = accumulate || from > 0;
            const Kernel kernel = kernels.of[add][r - 1][(w - 1) / kVector];
            const float *left = packed_a.data() + i * depth, *right = packed_b.data() + j * depth;
            const Block block = {c + (row + i) * c_stride + col + j, c_stride, alpha};
            if (w % kVector == 0)
              kernel(depth, left, right, block);
            else
              run_at_edge(kernel, depth, left, right, block, r, w, add);
          }
      }
    }
}

// Every sum below is a chain of FMAs, written as such. For `a * b + c`, GCC 14 splits some chains of 128 and 256 bits
// into products and sums, because that is faster on some processors, and then rounds differently.

#ifndef __FMA__  // not x86-64 with FMA, which has the intrinsics below; other targets with FMA use multiply_add()
/// A vector in memory, read and written through a pointer: GCC copies by memcpy over the stack, 16 bytes at a time.
template <class Vector>
using Unaligned [[gnu::aligned(4), gnu::may_alias]] = Vector;

template <class Vector>
[[gnu::always_inline]] inline Vector fused(const Vector& x, const Vector& y, Vector z) {
#ifdef PRECBENCH_HAS_FMA
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes<Vector>; ++lane) z[lane] = multiply_add(x[lane], y[lane], z[lane]);
  return z;
#else
  return x * y + z;
#endif
}

template <class Vector>
[[gnu::always_inline]] inline Vector repeated(float x) {
  Vector vector{};
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes<Vector>; ++lane) vector[lane] = x;
  return vector;
}
#endif

// Each width has as many sums as fit in registers beside a row of B and an element of A.
namespace of_128 {
using Vector = Vector128;
constexpr int kRows = 4, kVectors = 2;
#define PRECBENCH_TARGET
#ifdef __FMA__
#define PRECBENCH_SET1(x) _mm_set1_ps(x)
#define PRECBENCH_LOAD(p) _mm_loadu_ps(p)
#define PRECBENCH_STORE(p, x) _mm_storeu_ps(p, x)
#define PRECBENCH_FMA(x, y, z) _mm_fmadd_ps(x, y, z)
#else
#define PRECBENCH_SET1(x) repeated<Vector>(x)
#define PRECBENCH_LOAD(p) *reinterpret_cast<const Unaligned<Vector>*>(p)
#define PRECBENCH_STORE(p, x) *reinterpret_cast<Unaligned<Vector>*>(p) = (x)
#define PRECBENCH_FMA(x, y, z) fused<Vector>(x, y, z)
#endif
#include "kernels/cpu/gemm_kernel.h"
}  // namespace of_128

#ifdef __AVX__
#ifdef __FMA__
#undef PRECBENCH_SET1
#undef PRECBENCH_LOAD
#undef PRECBENCH_STORE
#undef PRECBENCH_FMA
#define PRECBENCH_SET1(x) _mm256_set1_ps(x)
#define PRECBENCH_LOAD(p) _mm256_loadu_ps(p)
#define PRECBENCH_STORE(p, x) _mm256_storeu_ps(p, x)
#define PRECBENCH_FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#endif
namespace of_256 {
using Vector = Vector256;
constexpr int kRows = 6, kVectors = 2;
#include "kernels/cpu/gemm_kernel.h"
}  // namespace of_256
#endif

#if defined(__x86_64__) && defined(__FMA__)
#define PRECBENCH_GEMM_512  // the other variants have no FMA and would round differently
#undef PRECBENCH_TARGET
#undef PRECBENCH_SET1
#undef PRECBENCH_LOAD
#undef PRECBENCH_STORE
#undef PRECBENCH_FMA
#define PRECBENCH_TARGET [[gnu::target("avx512f")]]
#define PRECBENCH_SET1(x) _mm512_set1_ps(x)
#define PRECBENCH_LOAD(p) _mm512_loadu_ps(p)
#define PRECBENCH_STORE(p, x) _mm512_storeu_ps(p, x)
#define PRECBENCH_FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
namespace of_512 {
using Vector = Vector512;
constexpr int kRows = 8, kVectors = 2;
#include "kernels/cpu/gemm_kernel.h"
}  // namespace of_512
#endif

/// Defines gemm() with the kernels of a namespace.
#define PRECBENCH_GEMM_VARIANT(name, of)                                                                   \
  void name(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Matrix& a, const Matrix& b, \
            bool accumulate, float* c, std::int64_t c_stride) {                                            \
    static constexpr auto kKernels = of::make_kernels<of::kRows, of::kVectors>(                            \
        std::make_integer_sequence<int, of::kRows * of::kVectors>());                                      \
    run<of::Vector>(kKernels, m, n, k, alpha, a, b, accumulate, c, c_stride);                              \
  }
PRECBENCH_GEMM_VARIANT(gemm_128, of_128)
#ifdef __AVX__
PRECBENCH_GEMM_VARIANT(gemm_256, of_256)
#endif
#ifdef PRECBENCH_GEMM_512
PRECBENCH_GEMM_VARIANT(gemm_512, of_512)
#endif

}  // namespace

std::span<const GemmVariant> gemm_variants() {
  static const std::vector<GemmVariant> variants = [] {
    std::vector<GemmVariant> found = {{128, gemm_128}};
#ifdef __AVX__
    found.push_back({256, gemm_256});
#endif
#ifdef PRECBENCH_GEMM_512
    if (__builtin_cpu_supports("avx512f")) found.push_back({512, gemm_512});
#endif
    return found;
  }();
  return variants;
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Matrix& a, const Matrix& b,
          bool accumulate, float* c, std::int64_t c_stride) {
  static const auto chosen = [] {
    const char* most = std::getenv("PRECBENCH_VECTOR_BITS");
    auto run = gemm_variants().front().run;
    for (const GemmVariant& variant : gemm_variants())
      if (!most || variant.bits <= std::atoi(most)) run = variant.run;
    return run;
  }();
  chosen(m, n, k, alpha, a, b, accumulate, c, c_stride);
}

}  // namespace precbench::cpu
