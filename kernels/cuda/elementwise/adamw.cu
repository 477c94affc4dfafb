// AdamW with clipping by the global norm in one pass over flat arrays, and the sum of squares that the norm
// is made of. Everything that changes from step to step (learning rate, bias corrections, seed, norm) is read
// from device memory, so a captured graph replays it with new values. Bytes per element, all BF16: 8 read and
// 6 written; with FP32 master, moments and gradient: 16 read and 14 written.
#include <algorithm>

#include "kernels/cuda/elementwise/scaled_values.cuh"
#include "kernels/cuda/elementwise/weight_update.cuh"

namespace precbench {
namespace cuda {
namespace {

struct Square {
  __device__ float operator()(float x) const { return x * x; }
};

// Square root and quotient from the hardware's approximations and one correction each: within an ulp, at a
// third of the instructions of the IEEE-rounded ones. Of infinity they are as IEEE has them: a second moment
// that overflows stops its weight instead of destroying it.
__device__ inline float fast_sqrt(float x) {
  float inverse;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  const float root = x * inverse;
  return x == 0.0f || isinf(x) ? x : fmaf(fmaf(-root, root, x), 0.5f * inverse, root);
}

__device__ inline float fast_quotient(float x, float y) {
  float inverse;
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  const float quotient = x * inverse;
  return isinf(y) ? quotient : fmaf(fmaf(-quotient, y, x), inverse, quotient);
}

// A fixed number of blocks, each thread over every gridDim-th run of eight elements; so without clipping a
// thread's sum of squares stays in a register, and blocks write one partial sum each.
inline constexpr int kBlocksPerSm = 8;

template <class Moment, class Gradient, bool kMaster>
__global__ void __launch_bounds__(kElementThreads)
    adamw_kernel(const WeightArgs a, Moment* m, Moment* v, const Gradient* gradient, double* partial) {
  __shared__ double buffer[kWarp];
  const StepScalars step = *a.scalars;
  const UpdateOptions& o = a.options;
  const float clip = clip_factor(a.norm_squared, o.max_norm);
  const float square_factor = 1.0f / step.bias_correction2;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  double sum = 0;
  for (std::int64_t i = first_element(); i < a.size; i += stride) {
    float w[8], mean[8], square[8], g[8];
    load_weights<kMaster>(w, a, i);
    load_elements(mean, m, i, a.size, a.vectors);
    load_elements(square, v, i, a.size, a.vectors);
    load_elements(g, gradient, i, a.size, a.vectors);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      squares += g[j] * g[j];
      const float clipped = g[j] * clip;
      mean[j] = o.beta1 * mean[j] + (1.0f - o.beta1) * clipped;
      square[j] = o.beta2 * square[j] + (1.0f - o.beta2) * clipped * clipped;
      const float root = fast_sqrt(square[j] * square_factor) + o.eps;
      const float update = fast_quotient(mean[j], step.bias_correction1 * root);
      w[j] -= step.lr * (update + o.weight_decay * w[j]);
    }
    sum += squares;
    store_elements(m, mean, i, a.size, a.vectors);
    store_elements(v, square, i, a.size, a.vectors);
    store_weights<kMaster>(w, a, i, step.seed);
  }
  if (!partial) return;
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_sum_of_squares(const ops::SumOfSquares& op) {
  if (op.scale.empty())
    cuda::sum_of(*this, op.out, op.x, op.accumulate, cuda::Square());
  else
    cuda::sum_code_squares(*this, op);
  launched("sum_of_squares");
}

void CudaDevice::do_adamw(const ops::Adamw& op) {
  using namespace cuda;
  if (op.scaled()) return scaled_adamw(op);
  const std::int64_t size = op.m.size();
  const WeightArgs args =
      weight_args(op, op.norm_squared, aligned(op.m) && aligned(op.v) && aligned(op.gradient));
  const unsigned blocks = std::min(element_blocks(size), static_cast<unsigned>(sm_count() * kBlocksPerSm));
  double* partial =
      op.options.max_norm > 0 ? nullptr : static_cast<double*>(scratch(blocks * sizeof(double)));
  if (size > 0) {
    with_type(op.m.dtype, [&](auto moment) {
      with_type(op.gradient.dtype, [&](auto grad) {
        using Moment = decltype(moment);
        using Gradient = decltype(grad);
        const auto kernel =
            op.master.empty() ? adamw_kernel<Moment, Gradient, false> : adamw_kernel<Moment, Gradient, true>;
        kernel<<<blocks, kElementThreads, 0, stream()>>>(args, op.m.as<Moment>(), op.v.as<Moment>(),
                                                         op.gradient.as<Gradient>(), partial);
      });
    });
    if (partial) sum_stage2(op.norm_squared.as<float>(), partial, static_cast<int>(blocks), true, stream());
  }
  launched("adamw");
}

}  // namespace precbench
