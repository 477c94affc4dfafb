// AdamW with moments that are stored with scales: FP16 or e4m3 with one power of two for the tensor, or COAT's groups of
// 128. A block of 128 threads takes 128 elements at a time, so that a group is a block's.
#include <algorithm>

#include "kernels/cuda/elementwise/weight_update.cuh"
#include "kernels/numerics/state_formats.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kGroupThreads = static_cast<int>(kCoatGroup);
constexpr int kGroupBlocksPerSm = 16;

enum class Stored : int { f32, bf16, f16, e4m3, coat };

struct MomentArgs {
  void* codes;
  float* scale;
  float* amax;
  float max;
  Stored stored;
};

MomentArgs moment_args(const Tensor& codes, const StateScale& scale) {
  const Stored stored = codes.dtype == DType::f32    ? Stored::f32
                        : codes.dtype == DType::bf16 ? Stored::bf16
                        : codes.dtype == DType::f16  ? Stored::f16
                        : scale.groups()             ? Stored::coat
                                                     : Stored::e4m3;
  return {codes.data, scale.scale.as<float>(), scale.amax.as<float>(), state_max(codes.dtype), stored};
}

__device__ CoatScale* coat_scales(const MomentArgs& a) { return reinterpret_cast<CoatScale*>(a.scale); }

__device__ float load_moment(const MomentArgs& a, std::int64_t i) {
  switch (a.stored) {
    case Stored::f32:
      return static_cast<const float*>(a.codes)[i];
    case Stored::bf16:
      return to_float(static_cast<const std::uint16_t*>(a.codes)[i]);
    case Stored::f16:
      return f16_decode(static_cast<const std::uint16_t*>(a.codes)[i]) * __fdiv_rn(1.0f, *a.scale);
    case Stored::e4m3:
      return e4m3_decode(static_cast<const std::uint8_t*>(a.codes)[i]) * __fdiv_rn(1.0f, *a.scale);
    default:
      return coat_decode(static_cast<const std::uint8_t*>(a.codes)[i], coat_scales(a)[i / kCoatGroup]);
  }
}

/// Largest magnitude of the block's values, or with `smallest` the smallest that is not 0, as bits; 0: none.
__device__ std::uint32_t block_extreme(float x, bool smallest, std::uint32_t* buffer) {
  const auto bits = static_cast<std::uint32_t>(abs_bits(x));
  // The order is turned round for the smallest: 0 stays the least.
  const std::uint32_t key = smallest ? (bits == 0 ? 0u : 0x7FFFFFFFu - bits) : bits;
  const std::uint32_t most = block_max(key, buffer);
  return smallest && most != 0 ? 0x7FFFFFFFu - most : most;
}

/// All threads of the block come here; those behind the end have x = 0.
__device__ void store_moment(const MomentArgs& a, std::int64_t i, bool inside, float x,
                             std::uint32_t (&buffers)[2][kWarp]) {
  if (a.stored == Stored::coat) {
    const float largest = bits_to_float(block_extreme(x, false, buffers[0]));
    const float smallest = bits_to_float(block_extreme(x, true, buffers[1]));
    const CoatScale scale = coat_scale(largest, smallest);
    if (inside) static_cast<std::uint8_t*>(a.codes)[i] = coat_encode(x, scale);
    // Everyone has read the old scale before the barriers above.
    if (threadIdx.x == 0) coat_scales(a)[i / kCoatGroup] = scale;
    return;
  }
  if (!inside) return;
  if (a.stored == Stored::f32) {
    static_cast<float*>(a.codes)[i] = x;
  } else if (a.stored == Stored::bf16) {
    from_float(static_cast<std::uint16_t*>(a.codes)[i], x);
  } else {
    const float scaled = x * state_scale(*a.amax, a.max, *a.scale);
    if (a.stored == Stored::f16)
      static_cast<std::uint16_t*>(a.codes)[i] = f16_encode(scaled);
    else
      static_cast<std::uint8_t*>(a.codes)[i] = e4m3_encode(scaled);
  }
}

/// Non-negative floats are ordered as integers, NaN above all.
__device__ void raise_amax(const MomentArgs& a, std::uint32_t bits) {
  if (a.amax && threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(a.amax), bits);
}

template <class Gradient>
__global__ void __launch_bounds__(kGroupThreads)
    scaled_adamw_kernel(const WeightArgs a, const MomentArgs m, const MomentArgs v, const Gradient* gradient,
                        bool measure, double* partial) {
  __shared__ std::uint32_t buffers[4][kWarp];
  __shared__ double sums[kWarp];
  const StepScalars step = *a.scalars;
  const UpdateOptions& o = a.options;
  const float clip = clip_factor(a.norm_squared, o.max_norm);
  std::uint32_t m_amax = 0, v_amax = 0;
  double squares = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kGroupThreads;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kGroupThreads; first < a.size;
       first += stride) {
    const std::int64_t i = first + threadIdx.x;
    const bool inside = i < a.size;
    const float g = inside ? to_float(gradient[i]) : 0.0f, clipped = g * clip;
    const float m0 = inside ? load_moment(m, i) : 0.0f, v0 = inside ? load_moment(v, i) : 0.0f;
    const float mean = o.beta1 * m0 + (1.0f - o.beta1) * clipped;
    const float square = o.beta2 * v0 + (1.0f - o.beta2) * clipped * clipped;
    if (measure) {
      m_amax = max(m_amax, static_cast<std::uint32_t>(abs_bits(mean)));
      v_amax = max(v_amax, static_cast<std::uint32_t>(abs_bits(square)));
      continue;
    }
    squares += static_cast<double>(g) * g;
    store_moment(m, i, inside, mean, *reinterpret_cast<std::uint32_t(*)[2][kWarp]>(&buffers[0]));
    store_moment(v, i, inside, square, *reinterpret_cast<std::uint32_t(*)[2][kWarp]>(&buffers[2]));
    if (inside) {
      float w = a.master ? a.master[i] : to_float(a.weights[i]);
      const float root = __fsqrt_rn(__fdiv_rn(square, step.bias_correction2)) + o.eps;
      const float update = __fdiv_rn(__fdiv_rn(mean, step.bias_correction1), root);
      w -= step.lr * (update + o.weight_decay * w);
      if (a.master) a.master[i] = w;
      if (a.weights) {
        if (o.stochastic_rounding)
          a.weights[i] = bf16_encode_stochastic(w, random_bits(step.seed, o.first_index + i));
        else
          from_float(a.weights[i], w);
      }
    }
    __syncthreads();  // the buffers are free again
  }
  if (measure) {
    raise_amax(m, block_max(m_amax, buffers[0]));
    raise_amax(v, block_max(v_amax, buffers[1]));
  } else if (partial) {
    squares = block_sum(squares, sums);
    if (threadIdx.x == 0) partial[blockIdx.x] = squares;
  }
}

__global__ void __launch_bounds__(kElementThreads)
    commit_scale_kernel(float* scale, float* amax, float max, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i >= count) return;
  scale[i] = state_scale(amax[i], max, scale[i]);
  amax[i] = 0;
}

}  // namespace
}  // namespace cuda

void CudaDevice::scaled_adamw(const ops::Adamw& op) {
  using namespace cuda;
  const WeightArgs args = weight_args(op, op.norm_squared, false);
  const std::int64_t groups = (args.size + kGroupThreads - 1) / kGroupThreads;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(groups, sm_count() * kGroupBlocksPerSm));
  const bool sums = op.options.max_norm <= 0 && !op.measure;
  double* partial = sums ? static_cast<double*>(scratch(blocks * sizeof(double))) : nullptr;
  if (args.size > 0) {
    with_type(op.gradient.dtype, [&](auto grad) {
      using Gradient = decltype(grad);
      scaled_adamw_kernel<<<blocks, kGroupThreads, 0, stream()>>>(
          args, moment_args(op.m, op.m_scale), moment_args(op.v, op.v_scale), op.gradient.as<Gradient>(),
          op.measure, partial);
    });
    if (partial) sum_stage2(op.norm_squared.as<float>(), partial, static_cast<int>(blocks), true, stream());
  }
  launched("adamw");
}

void CudaDevice::do_commit_scale(const ops::CommitScale& op) {
  using namespace cuda;
  if (const std::int64_t count = op.scale.size())
    commit_scale_kernel<<<static_cast<unsigned>((count + kElementThreads - 1) / kElementThreads),
                          kElementThreads, 0, stream()>>>(op.scale.as<float>(), op.amax.as<float>(), op.max,
                                                          count);
  launched("commit_scale");
}

}  // namespace precbench
