// Rows of groups back to their tokens: a block for each token adds its slots' rows, in their order and in FP32, eight
// columns a thread. The loads of several rows are in flight together, or of several parts of a row.
#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kLoads = 4;  // of rows that a thread has in flight
constexpr int kMostThreads = 256;

template <class Out, class Addend>
struct UnpermuteArgs {
  Out* out;
  const std::uint16_t *rows, *x;  // x: null without dw
  const Addend* addend;           // may be null
  const float* weights;           // may be null
  float* dw;
  const std::int32_t* row_of;
  std::int64_t cols;
  int top_k;
};

/// sums += the token's rows in eight columns from `col` on, and in those `step` further on where there are several; `dot` of
/// slot k += its product with x.
template <bool kDots, int kSums, class Args>
__device__ inline void add_rows(float (&sums)[kSums][8], const Args& a, std::int64_t token, std::int64_t col,
                                std::int64_t step, const std::int32_t* rows, const float* weights,
                                float* dots) {
  constexpr int kBatch = kLoads / kSums;
  float x[8];
  if (kDots) load_vector(x, a.x + token * a.cols + col);
  bool any = false;
  for (int first = 0; first < a.top_k; first += kBatch) {
    Bf16x8 raw[kBatch][kSums];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= a.top_k || rows[first + i] < 0) continue;
      const std::uint16_t* row = a.rows + std::int64_t{rows[first + i]} * a.cols + col;
#pragma unroll
      for (int n = 0; n < kSums; ++n)
        if (n == 0 || col + n * step < a.cols) raw[i][n] = load_vector(row + n * step);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= a.top_k || rows[first + i] < 0) continue;
      const float weight = weights[first + i];
      float dot = 0;
#pragma unroll
      for (int n = 0; n < kSums; ++n) {
        float v[8];
        unpack(v, raw[i][n]);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          sums[n][j] = any ? fmaf(weight, v[j], sums[n][j]) : weight * v[j];
          if (kDots) dot = fmaf(v[j], x[j], dot);
        }
      }
      if (kDots) dots[first + i] += dot;
      any = true;
    }
  }
}

template <bool kDots, int kSums, class Args>
__global__ void __launch_bounds__(kMostThreads) unpermute_kernel(const Args a) {
  static_assert(!kDots || kSums == 1);
  __shared__ std::int32_t rows[kWarp];
  __shared__ float weights[kWarp];
  __shared__ float buffers[2][kWarp];
  const std::int64_t token = blockIdx.x;
  if (threadIdx.x < a.top_k) {
    const std::int64_t slot = token * a.top_k + threadIdx.x;
    rows[threadIdx.x] = a.row_of[slot];
    weights[threadIdx.x] = a.weights ? a.weights[slot] : 1.0f;
  }
  __syncthreads();
  float dots[kDots ? kWarp : 1] = {};
  const std::int64_t step = blockDim.x * 8;
  for (std::int64_t first = threadIdx.x * 8; first < a.cols; first += kSums * step) {
    float sums[kSums][8] = {};
    add_rows<kDots>(sums, a, token, first, step, rows, weights, dots);
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      const std::int64_t col = first + n * step;
      if (n > 0 && col >= a.cols) break;
      if (a.addend) {
        float more[8];
        load_vector(more, a.addend + token * a.cols + col);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[n][j] += more[j];
      }
      store_vector(a.out + token * a.cols + col, sums[n]);
    }
  }
  if constexpr (kDots) {
    for (int k = 0; k < a.top_k; ++k) {
      const float dot = block_sum(dots[k], buffers[k % 2]);
      if (threadIdx.x == 0) a.dw[token * a.top_k + k] = rows[k] < 0 ? 0.0f : dot;
    }
  }
}

/// Short rows in FP32, a thread for each element of a token's sum.
__global__ void __launch_bounds__(kMostThreads)
    add_short_rows_kernel(float* out, const float* rows, const std::int32_t* row_of, std::int64_t size,
                          int cols, int top_k) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMostThreads + threadIdx.x;
  if (i >= size) return;
  const std::int64_t token = i / cols;
  float sum = 0;
  for (int k = 0; k < top_k; ++k)
    if (const std::int64_t row = row_of[token * top_k + k]; row >= 0) sum += rows[row * cols + i % cols];
  out[i] = sum;
}

/// What comes back of the slots' weights from the ranks of their experts.
bool short_rows(const ops::Unpermute& op) {
  return op.rows.dtype == DType::f32 && op.out.dtype == DType::f32 && op.addend.empty() && op.weights.empty();
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_unpermute(const ops::Unpermute& op) {
  using namespace cuda;
  const std::int64_t C = op.out.cols;
  if (op.out.rows == 0) return;  // of other ranks' tokens none has come
  if (short_rows(op)) {
    const auto blocks = static_cast<unsigned>((op.out.size() + kMostThreads - 1) / kMostThreads);
    add_short_rows_kernel<<<blocks, kMostThreads, 0, stream()>>>(
        op.out.as<float>(), op.rows.as<float>(), op.groups.row_of.as<std::int32_t>(), op.out.size(),
        static_cast<int>(C), static_cast<int>(op.groups.top_k()));
    return launched("unpermute");
  }
  check_rule({.experts = op.groups.experts(), .top_k = op.groups.top_k()});
  if (C % 8 != 0) throw Unsupported("the CUDA device adds experts' rows of a multiple of 8 elements");
  const int vectors = static_cast<int>(std::min<std::int64_t>(C / 8, kMostThreads));
  const int threads = (vectors + kWarp - 1) / kWarp * kWarp;
  with_type(op.out.dtype, [&](auto out_type) {
    with_type(op.addend.dtype, [&](auto addend_type) {
      using Out = decltype(out_type);
      using Addend = decltype(addend_type);
      const UnpermuteArgs<Out, Addend> args{op.out.as<Out>(),
                                            op.rows.as<std::uint16_t>(),
                                            op.x.as<std::uint16_t>(),
                                            op.addend.as<Addend>(),
                                            op.weights.as<float>(),
                                            op.dw.as<float>(),
                                            op.groups.row_of.as<std::int32_t>(),
                                            C,
                                            static_cast<int>(op.groups.top_k())};
      // Of few slots each has several vectors of a row in flight.
      const auto kernel = !op.dw.empty() ? unpermute_kernel<true, 1, decltype(args)>
                          : args.top_k <= kLoads / 2 && C / 8 > kMostThreads
                              ? unpermute_kernel<false, 2, decltype(args)>
                              : unpermute_kernel<false, 1, decltype(args)>;
      kernel<<<static_cast<unsigned>(op.out.rows), threads, 0, stream()>>>(args);
    });
  });
  launched("unpermute");
}

}  // namespace precbench
