// D[M,N] = A[M,k] B[N,k]^T: operands dequantized to FP32, an FP32 GEMM, the output rounded once.
// Threads take runs of D's rows; a run is computed tile by tile so that the FP32 tile stays in cache.
#include <cblas.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/fp4.h"

namespace precbench {

namespace cpu {

void multiply(int threads, const Tensor& d, const Matrix& a, const Matrix& b, std::int64_t K, float alpha,
              bool accumulate) {
  const std::int64_t M = d.rows, N = d.cols;
  // Rows of D that one BLAS call makes: enough for its packing of B to pay, few enough for the FP32 tile to
  // stay in L2, and an equal share for each of several threads. Their number does not depend on the threads, nor
  // then does any sum.
  constexpr std::int64_t kTileElements = 1 << 17, kMinRows = 64, kMaxRows = 512, kShares = 8;
  const auto divide = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  const std::int64_t largest = std::clamp(kTileElements / N, kMinRows, kMaxRows);
  const std::int64_t shares = divide(divide(M, largest), kShares) * kShares;
  const std::int64_t tile_rows = std::max(divide(divide(M, shares), 16) * 16, kMinRows);
  const std::int64_t tiles = divide(M, tile_rows);
  const bool direct = d.dtype == DType::f32;
  for_rows(threads, tiles, direct ? 0 : tile_rows * N, [&](std::int64_t tile, float* buffer) {
    const std::int64_t first = tile * tile_rows;
    const std::int64_t rows = std::min(tile_rows, M - first);
    float* target = direct ? d.as<float>() + first * N : buffer;
    const float* A_tile = a.transposed ? a.data + first : a.data + first * a.stride;
    if (!direct && accumulate) load(d, first * N, rows * N, buffer);
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
                b.transposed ? CblasNoTrans : CblasTrans, static_cast<int>(rows), static_cast<int>(N),
                static_cast<int>(K), alpha, A_tile, static_cast<int>(a.stride), b.data,
                static_cast<int>(b.stride), accumulate ? 1.0f : 0.0f, target, static_cast<int>(N));
    store(d, first * N, rows * N, target);
  });
}

}  // namespace cpu

void CpuDevice::do_matmul(const ops::Matmul& op) {
  const float* A = widen(0, op.a);
  const float* B = widen(1, op.b);
  // FP8 operands have their scales in them; FP4's tensors leave a factor.
  const auto amax = [](const GemmOperand& form) { return form.amax.empty() ? 0.0f : *form.amax.as<float>(); };
  const bool fp4 = op.a.format.dtype == DType::e2m1 || op.b.format.dtype == DType::e2m1;
  const float alpha = fp4 ? fp4_alpha(op.a.format, op.b.format, amax(op.a), amax(op.b)) : 1.0f;
  cpu::multiply(threads_, op.d, {A, op.a.data.cols, op.a.transposed}, {B, op.b.data.cols, op.b.transposed},
                op.a.k(), alpha, op.options.accumulate);
}

}  // namespace precbench
