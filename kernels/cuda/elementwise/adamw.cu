// AdamW with clipping by the global norm in one pass over flat arrays, and the sum of squares that the norm
// is made of. Everything that changes from step to step (learning rate, bias corrections, seed, norm) is read
// from device memory, so a captured graph replays it with new values. Bytes per element, all BF16: 8 read and
// 6 written; with FP32 master, moments and gradient: 16 read and 14 written.
#include <type_traits>

#include "kernels/cuda/elementwise/weight_update.cuh"
#include "kernels/cuda/launch.cuh"

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

/// What a step's elements share.
struct Rule {
  StepScalars step;
  float clip, square_factor;
};

/// Eight elements; returns the sum of their gradients' squares.
__device__ inline float update(float (&w)[8], float (&mean)[8], float (&square)[8], const float (&g)[8],
                               const UpdateOptions& o, const Rule& rule) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    squares += g[j] * g[j];
    const float clipped = g[j] * rule.clip;
    mean[j] = o.beta1 * mean[j] + (1.0f - o.beta1) * clipped;
    square[j] = o.beta2 * square[j] + (1.0f - o.beta2) * clipped * clipped;
    const float root = fast_sqrt(square[j] * rule.square_factor) + o.eps;
    const float quotient = fast_quotient(mean[j], rule.step.bias_correction1 * root);
    w[j] -= rule.step.lr * (quotient + o.weight_decay * w[j]);
  }
  return squares;
}

/// Eight elements as they lie in memory: held so while others are on their way, in half of the registers that BF16 would
/// take as floats.
template <class T>
struct Packed {
  uint4 words[sizeof(T) / 2];
};
template <class T>
__device__ inline Packed<T> fetch(const T* p) {
  Packed<T> packed;
#pragma unroll
  for (std::size_t i = 0; i < sizeof(T) / 2; ++i) packed.words[i] = reinterpret_cast<const uint4*>(p)[i];
  return packed;
}
template <class T>
__device__ inline void widen(float (&out)[8], const Packed<T>& packed) {
  load_vector(out, reinterpret_cast<const T*>(packed.words));
}

// Each thread takes every gridDim-th run, of two vectors of eight where a block's run is whole, so that twice the bytes are
// on their way. The grid is as many blocks as fit at once: without clipping a thread's sum of squares stays in a register,
// and blocks write one partial sum each.
inline constexpr int kSets = 2;

template <class Moment, class Gradient, bool kMaster>
__global__ void __launch_bounds__(kElementThreads)
    adamw_kernel(const WeightArgs a, Moment* m, Moment* v, const Gradient* gradient, double* partial) {
  using Weight = std::conditional_t<kMaster, float, std::uint16_t>;
  __shared__ double buffer[kWarp];
  wait_for_work_before();
  Weight* weights;
  if constexpr (kMaster)
    weights = a.master;
  else
    weights = a.weights;
  const StepScalars step = *a.scalars;
  const Rule rule{step, clip_factor(a.norm_squared, a.options.max_norm), 1.0f / step.bias_correction2};
  constexpr std::int64_t kSet = kElementThreads * 8, kRun = kSets * kSet;
  double sum = 0;
  for (std::int64_t run = blockIdx.x * kRun; run < a.size; run += gridDim.x * kRun) {
    const std::int64_t first = run + threadIdx.x * 8;
    float w[8], mean[8], square[8], g[8];
    if (a.vectors && run + kRun <= a.size) {
      Packed<Weight> weight[kSets];
      Packed<Moment> means[kSets], squares[kSets];
      Packed<Gradient> gradients[kSets];
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        const std::int64_t i = first + s * kSet;
        weight[s] = fetch(weights + i), means[s] = fetch(m + i), squares[s] = fetch(v + i);
        gradients[s] = fetch(gradient + i);
      }
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        const std::int64_t i = first + s * kSet;
        widen(w, weight[s]), widen(mean, means[s]), widen(square, squares[s]), widen(g, gradients[s]);
        sum += update(w, mean, square, g, a.options, rule);
        store_vector(m + i, mean), store_vector(v + i, square);
        store_weights<kMaster>(w, a, i, step.seed);
      }
      continue;
    }
    for (std::int64_t i = first; i < min(a.size, run + kRun); i += kSet) {
      load_weights<kMaster>(w, a, i);
      load_elements(mean, m, i, a.size, a.vectors);
      load_elements(square, v, i, a.size, a.vectors);
      load_elements(g, gradient, i, a.size, a.vectors);
      sum += update(w, mean, square, g, a.options, rule);
      store_elements(m, mean, i, a.size, a.vectors);
      store_elements(v, square, i, a.size, a.vectors);
      store_weights<kMaster>(w, a, i, step.seed);
    }
  }
  if (!partial) return;
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_sum_of_squares(const ops::SumOfSquares& op) {
  cuda::sum_of(*this, op.out, op.x, op.accumulate, cuda::Square());
  launched("sum_of_squares");
}

void CudaDevice::do_adamw(const ops::Adamw& op) {
  using namespace cuda;
  if (op.scaled()) return scaled_adamw(op);
  const std::int64_t size = op.m.size();
  const WeightArgs args =
      weight_args(op, op.norm_squared, aligned(op.m) && aligned(op.v) && aligned(op.gradient));
  if (size > 0) {
    with_type(op.m.dtype, [&](auto moment) {
      with_type(op.gradient.dtype, [&](auto grad) {
        using Moment = decltype(moment);
        using Gradient = decltype(grad);
        const auto kernel =
            op.master.empty() ? adamw_kernel<Moment, Gradient, false> : adamw_kernel<Moment, Gradient, true>;
        const int blocks = persistent_grid(*this, kernel, kElementThreads, 0, element_blocks(size));
        double* partial =
            op.options.max_norm > 0 ? nullptr : static_cast<double*>(scratch(blocks * sizeof(double)));
        launch_early(kernel, blocks, kElementThreads, 0, stream(), args, op.m.as<Moment>(), op.v.as<Moment>(),
                     op.gradient.as<Gradient>(), partial);
        if (partial) sum_stage2(op.norm_squared.as<float>(), partial, blocks, true, stream());
      });
    });
  }
  launched("adamw");
}

}  // namespace precbench
