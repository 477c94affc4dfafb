// The FP32 product behind the CPU device's GEMMs.
#pragma once

#include <cstdint>

#include "kernels/numerics/tensor.h"

namespace precbench::cpu {

/// Vectors that a product contracts, in FP32: [vectors, k], or [k, vectors] where they are transposed.
struct Matrix {
  const float* data;
  std::int64_t stride;  ///< elements from one row in memory to the next
  bool transposed;
};

/// d [M, N] = or += alpha a b^T over K, rounded once. The order of a sum does not depend on `threads`.
void multiply(int threads, const Tensor& d, const Matrix& a, const Matrix& b, std::int64_t K, float alpha,
              bool accumulate);

}  // namespace precbench::cpu
