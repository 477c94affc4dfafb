// The GEMM of the CPU device's ops: operands in FP32, the output in the tensor's dtype.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/numerics/tensor.h"

namespace precbench::cpu {

/// Computes d [M, N] = alpha a b^T or, with `accumulate`, d += alpha a b^T, by gemm() and rounded once. An
/// element's bits depend neither on `threads` nor on other rows and columns of d.
void multiply(int threads, const Tensor& d, const Matrix& a, const Matrix& b, std::int64_t K, float alpha,
              bool accumulate);

}  // namespace precbench::cpu
