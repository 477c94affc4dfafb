// D[M,N] = A[M,k] B[N,k]^T: operands dequantized to FP32, an FP32 GEMM, the output rounded once. Threads
// process tiles of D small enough for the FP32 tile to stay in cache.
#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/fp4.h"

namespace precbench {

namespace cpu {
namespace {

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

struct Tiles {
  std::int64_t rows, cols;  ///< of a tile
  std::int64_t down, across;
};

/// Divides an M x N output. Large tiles pack operands the fewest times; several tiles per thread balance the
/// load. Tiling does not change results.
Tiles divide(std::int64_t M, std::int64_t N, int threads) {
  constexpr std::int64_t kRows = 192, kCols = 512, kLeastRows = 48, kLeastCols = 64, kPerThread = 4;
  Tiles tiles = {kRows, kCols, 0, 0};
  for (;;) {
    tiles.down = divide_up(M, tiles.rows);
    tiles.across = divide_up(N, tiles.cols);
    if (threads == 1 || tiles.down * tiles.across >= kPerThread * threads) return tiles;
    if (tiles.cols > kLeastCols && (tiles.cols > tiles.rows || tiles.rows == kLeastRows))
      tiles.cols /= 2;
    else if (tiles.rows > kLeastRows)
      tiles.rows /= 2;
    else
      return tiles;
  }
}

}  // namespace

void multiply(int threads, const Tensor& d, const Matrix& a, const Matrix& b, std::int64_t K, float alpha,
              bool accumulate) {
  const std::int64_t M = d.rows, N = d.cols;
  const Tiles tiles = divide(M, N, threads);
  const bool direct = d.dtype == DType::f32;
  const auto from_row = [](const Matrix& x, std::int64_t row) {
    return Matrix{x.data + (x.transposed ? row : row * x.stride), x.stride, x.transposed};
  };
  for_rows(threads, tiles.down * tiles.across, direct ? 0 : tiles.rows * tiles.cols,
           [&](std::int64_t tile, float* buffer) {
             const std::int64_t row = tile / tiles.across * tiles.rows,
                                col = tile % tiles.across * tiles.cols;
             const std::int64_t rows = std::min(tiles.rows, M - row), cols = std::min(tiles.cols, N - col);
             const Matrix left = from_row(a, row), right = from_row(b, col);
             if (direct)
               return gemm(rows, cols, K, alpha, left, right, accumulate, d.as<float>() + row * N + col, N);
             for (std::int64_t i = 0; accumulate && i < rows; ++i)
               load(d, (row + i) * N + col, cols, buffer + i * cols);
             gemm(rows, cols, K, alpha, left, right, accumulate, buffer, cols);
             for (std::int64_t i = 0; i < rows; ++i) store(d, (row + i) * N + col, cols, buffer + i * cols);
           });
}

}  // namespace cpu

void CpuDevice::do_matmul(const ops::Matmul& op) {
  const float* A = widen(0, op.a);
  const float* B = widen(1, op.b);
  // FP8 operands are already scaled; FP4 tensors leave a factor.
  const auto amax = [](const GemmOperand& form) { return form.amax.empty() ? 0.0f : *form.amax.as<float>(); };
  const bool fp4 = op.a.format.dtype == DType::e2m1 || op.b.format.dtype == DType::e2m1;
  const float alpha = fp4 ? fp4_alpha(op.a.format, op.b.format, amax(op.a), amax(op.b)) : 1.0f;
  cpu::multiply(threads_, op.d, {A, op.a.data.cols, op.a.transposed}, {B, op.b.data.cols, op.b.transposed},
                op.a.k(), alpha, op.options.accumulate);
}

}  // namespace precbench
