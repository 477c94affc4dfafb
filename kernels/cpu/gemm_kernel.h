// The kernels of gemm() for one vector width. gemm.cpp includes this file once per width, each time in another
// namespace, and defines before it
//   Vector                   the type of a vector of floats
//   PRECBENCH_TARGET         the attributes of functions that use it
//   PRECBENCH_SET1(x)        a vector whose elements are all x
//   PRECBENCH_LOAD(p)        the vector at p, which need not be aligned
//   PRECBENCH_STORE(p, x)    writes a vector to p
//   PRECBENCH_FMA(x, y, z)   x * y + z of vectors, rounded once if the target has FMAs
// One template for all widths is not possible: GCC compiles the intrinsics of a width only in functions that have its
// target attribute, which cannot depend on a template parameter.

/// C = or, with kAdd, += alpha A B^T over k, for A packed as [k][kRows], B as [k][kVectors vectors], and as
/// many columns of C.
template <int kRows, int kVectors, bool kAdd>
PRECBENCH_TARGET void multiply_block(std::int64_t k, const float* a, const float* b, const Block& block) {
  Vector sum[kRows][kVectors] = {};
  for (std::int64_t p = 0; p < k; ++p, a += kRows, b += kVectors * kLanes<Vector>) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = PRECBENCH_LOAD(b + v * kLanes<Vector>);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector left = PRECBENCH_SET1(a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = PRECBENCH_FMA(left, right[v], sum[i][v]);
    }
  }
  const Vector alpha = PRECBENCH_SET1(block.alpha);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* c = block.c + i * block.stride + v * kLanes<Vector>;
      if constexpr (kAdd)
        PRECBENCH_STORE(c, PRECBENCH_FMA(alpha, sum[i][v], PRECBENCH_LOAD(c)));
      else
        PRECBENCH_STORE(c, alpha * sum[i][v]);
    }
  }
}

template <int kRows, int kVectors, int... i>
constexpr Kernels<kRows, kVectors> make_kernels(std::integer_sequence<int, i...>) {
  Kernels<kRows, kVectors> table{};
  ((table.of[0][i / kVectors][i % kVectors] = multiply_block<i / kVectors + 1, i % kVectors + 1, false>,
    table.of[1][i / kVectors][i % kVectors] = multiply_block<i / kVectors + 1, i % kVectors + 1, true>),
   ...);
  return table;
}
