// Adds group rows back to their tokens: a block per token adds its slots' rows in order and in FP32, eight
// columns per thread. The loads of several rows are in flight together.
#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kBatch = 4;  // slots whose rows are read together
constexpr int kUnpermuteThreads = 256;

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

/// sum += the token's rows in columns [col, col + 8); `dot` of slot k += its row times x.
template <bool kDots, class Args>
__device__ inline void add_rows(float (&sum)[8], const Args& a, std::int64_t token, std::int64_t col,
                                const std::int32_t* rows, const float* weights, float* dots) {
  float x[8];
  if (kDots) load_vector(x, a.x + token * a.cols + col);
  bool any = false;
  for (int first = 0; first < a.top_k; first += kBatch) {
    Bf16x8 raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i < a.top_k && rows[first + i] >= 0)
        raw[i] = load_vector(a.rows + std::int64_t{rows[first + i]} * a.cols + col);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= a.top_k || rows[first + i] < 0) continue;
      const float weight = weights[first + i];
      float v[8], dot = 0;
      unpack(v, raw[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum[j] = any ? fmaf(weight, v[j], sum[j]) : weight * v[j];
        if (kDots) dot = fmaf(v[j], x[j], dot);
      }
      if (kDots) dots[first + i] += dot;
      any = true;
    }
  }
}

template <bool kDots, class Args>
__global__ void __launch_bounds__(kUnpermuteThreads) unpermute_kernel(const Args a) {
  wait_for_work_before();
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
  for (std::int64_t col = threadIdx.x * 8; col < a.cols; col += blockDim.x * 8) {
    float sum[8] = {};
    add_rows<kDots>(sum, a, token, col, rows, weights, dots);
    if (a.addend) {
      float more[8];
      load_vector(more, a.addend + token * a.cols + col);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += more[j];
    }
    store_vector(a.out + token * a.cols + col, sum);
  }
  if constexpr (kDots) {
    for (int k = 0; k < a.top_k; ++k) {
      const float dot = block_sum(dots[k], buffers[k % 2]);
      if (threadIdx.x == 0) a.dw[token * a.top_k + k] = rows[k] < 0 ? 0.0f : dot;
    }
  }
}

/// Short rows in FP32, one thread per element of a token's sum.
__global__ void __launch_bounds__(kUnpermuteThreads)
    add_short_rows_kernel(float* out, const float* rows, const std::int32_t* row_of, std::int64_t size,
                          int cols, int top_k) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kUnpermuteThreads + threadIdx.x;
  if (i >= size) return;
  const std::int64_t token = i / cols;
  float sum = 0;
  for (int k = 0; k < top_k; ++k)
    if (const std::int64_t row = row_of[token * top_k + k]; row >= 0) sum += rows[row * cols + i % cols];
  out[i] = sum;
}

/// Returns true for the gradients of slot weights returned by the experts' ranks.
bool short_rows(const ops::Unpermute& op) {
  return op.rows.dtype == DType::f32 && op.out.dtype == DType::f32 && op.addend.empty() && op.weights.empty();
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_unpermute(const ops::Unpermute& op) {
  using namespace cuda;
  const std::int64_t C = op.out.cols;
  if (op.out.rows == 0) return;  // no tokens of other ranks
  if (short_rows(op)) {
    const auto blocks = static_cast<unsigned>((op.out.size() + kUnpermuteThreads - 1) / kUnpermuteThreads);
    add_short_rows_kernel<<<blocks, kUnpermuteThreads, 0, stream()>>>(
        op.out.as<float>(), op.rows.as<float>(), op.groups.row_of.as<std::int32_t>(), op.out.size(),
        static_cast<int>(C), static_cast<int>(op.groups.top_k()));
    return launched("unpermute");
  }
  check_rule({.experts = op.groups.experts(), .top_k = op.groups.top_k()});
  if (C % 8 != 0) throw Unsupported("the CUDA device adds experts' rows of a multiple of 8 elements");
  const int vectors = static_cast<int>(std::min<std::int64_t>(C / 8, kUnpermuteThreads));
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
      const auto kernel =
          op.dw.empty() ? unpermute_kernel<false, decltype(args)> : unpermute_kernel<true, decltype(args)>;
      kernel<<<static_cast<unsigned>(op.out.rows), threads, 0, stream()>>>(args);
    });
  });
  launched("unpermute");
}

}  // namespace precbench
