// Distance of two next-token distributions, row by row, in FP64. A thread block processes one row and reads it
// twice, for the maxima and for the sums. Only measurements of fidelity run it.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/numerics/activation_functions.h"
#include "kernels/numerics/formats.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kCompareThreads = 256;

struct CompareArgs {
  float* out;  // [rows, 2]
  const void *reference, *logits;
  const std::int32_t* targets;
  std::int64_t rows, cols;
  float softcap;
};

__device__ inline float element(const float* x, std::int64_t at) { return x[at]; }
__device__ inline float element(const std::uint16_t* x, std::int64_t at) { return bf16_decode(x[at]); }
template <class Element>
__device__ inline float logit(const Element* x, std::int64_t at, float softcap) {
  return soft_capped(element(x, at), softcap);
}

/// Returns the largest number of the row in every thread; NaN if there is one.
template <class Element>
__device__ inline float row_max(const Element* x, std::int64_t cols, float softcap,
                                std::uint32_t* buffer /* [32] */) {
  // Keys are ordered as the numbers are, NaN above all.
  std::uint32_t largest = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += kCompareThreads) {
    const float value = logit(x, i, softcap);
    const std::uint32_t bits = __float_as_uint(value);
    const std::uint32_t key = isnan(value) ? 0xFFFFFFFFu : bits >> 31 ? ~bits : bits | 0x80000000u;
    largest = max(largest, key);
  }
  largest = block_max(largest, buffer);
  return __uint_as_float(largest == 0xFFFFFFFFu ? 0x7FC00000u
                         : largest >> 31        ? largest & 0x7FFFFFFFu
                                                : ~largest);
}

template <class Element>
__global__ void __launch_bounds__(kCompareThreads) compare_logits_kernel(const CompareArgs a) {
  wait_for_work_before();
  __shared__ std::uint32_t maxima[2][kWarp];
  __shared__ double sums[3][kWarp];
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Element* p = static_cast<const Element*>(a.reference) + row * a.cols;
    const Element* q = static_cast<const Element*>(a.logits) + row * a.cols;
    const float cap = a.softcap;
    const double p_max = row_max(p, a.cols, cap, maxima[0]), q_max = row_max(q, a.cols, cap, maxima[1]);
    double p_sum = 0, q_sum = 0, weighted = 0;  // weighted: of the differences, by the reference
    for (std::int64_t i = threadIdx.x; i < a.cols; i += kCompareThreads) {
      const double p_logit = logit(p, i, cap) - p_max, q_logit = logit(q, i, cap) - q_max;
      const double weight = exp(p_logit);
      p_sum += weight;
      q_sum += exp(q_logit);
      weighted += weight * (p_logit - q_logit);
    }
    p_sum = block_sum(p_sum, sums[0]);
    q_sum = block_sum(q_sum, sums[1]);
    weighted = block_sum(weighted, sums[2]);
    if (threadIdx.x == 0) {
      const double normalizers = log(q_sum) - log(p_sum);
      const std::int32_t target = a.targets[row];
      const double p_target = logit(p, target, cap) - p_max, q_target = logit(q, target, cap) - q_max;
      a.out[2 * row] = static_cast<float>(q_target - p_target - normalizers);
      a.out[2 * row + 1] = static_cast<float>(weighted / p_sum + normalizers);
    }
    __syncthreads();  // the buffers are free again
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_compare_logits(const ops::CompareLogits& op) {
  using namespace cuda;
  if (op.logits.rows == 0) return;
  const CompareArgs args{op.out.as<float>(), op.reference.data, op.logits.data, op.targets.as<std::int32_t>(),
                         op.logits.rows,     op.logits.cols,    op.softcap};
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(op.logits.rows, 8 * sm_count()));
  if (op.logits.dtype == DType::f32)
    compare_logits_kernel<float><<<grid, kCompareThreads, 0, stream()>>>(args);
  else
    compare_logits_kernel<std::uint16_t><<<grid, kCompareThreads, 0, stream()>>>(args);
  launched("compare_logits");
}

}  // namespace precbench
