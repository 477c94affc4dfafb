// AdamW where moments, master or gradient are kept with scales: FP16 or e4m3 with one power of two for the tensor, or
// COAT's groups of 128. A block of 128 threads takes 128 elements at a time, so that a group is a block's.
#include <algorithm>

#include "kernels/cuda/elementwise/scaled_values.cuh"
#include "kernels/cuda/elementwise/weight_update.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kGroupThreads = static_cast<int>(kCoatGroup);
constexpr int kGroupBlocksPerSm = 16;

__device__ CoatScale* coat_scales(const StoredArgs& a) { return reinterpret_cast<CoatScale*>(a.scale); }

__device__ float load_moment(const StoredArgs& a, std::int64_t i) {
  if (a.stored == Stored::coat)
    return coat_decode(static_cast<const std::uint8_t*>(a.codes)[i], coat_scales(a)[i / kCoatGroup]);
  return load_stored(a, i);
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
__device__ void store_moment(const StoredArgs& a, std::int64_t i, bool inside, float x,
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
  if (inside) store_stored(a, i, x);
}

/// `master`: without codes where the weights are their own.
__global__ void __launch_bounds__(kGroupThreads)
    scaled_adamw_kernel(const WeightArgs a, const StoredArgs master, const StoredArgs m, const StoredArgs v,
                        const StoredArgs gradient, bool measure, double* partial) {
  __shared__ std::uint32_t buffers[4][kWarp];
  __shared__ double sums[kWarp];
  const StepScalars step = *a.scalars;
  const UpdateOptions& o = a.options;
  const float clip = clip_factor(a.norm_squared, o.max_norm);
  std::uint32_t m_amax = 0, v_amax = 0, w_amax = 0;
  double squares = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kGroupThreads;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kGroupThreads; first < a.size;
       first += stride) {
    const std::int64_t i = first + threadIdx.x;
    const bool inside = i < a.size;
    const float g = inside ? load_stored(gradient, i) : 0.0f, clipped = g * clip;
    const float m0 = inside ? load_moment(m, i) : 0.0f, v0 = inside ? load_moment(v, i) : 0.0f;
    const float mean = o.beta1 * m0 + (1.0f - o.beta1) * clipped;
    const float square = o.beta2 * v0 + (1.0f - o.beta2) * clipped * clipped;
    float w = 0;
    if (inside && (!measure || master.amax)) {
      w = master.codes ? load_stored(master, i) : to_float(a.weights[i]);
      const float root = __fsqrt_rn(__fdiv_rn(square, step.bias_correction2)) + o.eps;
      const float update = __fdiv_rn(__fdiv_rn(mean, step.bias_correction1), root);
      w -= step.lr * (update + o.weight_decay * w);
    }
    if (measure) {
      m_amax = max(m_amax, static_cast<std::uint32_t>(abs_bits(mean)));
      v_amax = max(v_amax, static_cast<std::uint32_t>(abs_bits(square)));
      w_amax = max(w_amax, static_cast<std::uint32_t>(abs_bits(w)));
      continue;
    }
    squares += static_cast<double>(g) * g;
    store_moment(m, i, inside, mean, *reinterpret_cast<std::uint32_t(*)[2][kWarp]>(&buffers[0]));
    store_moment(v, i, inside, square, *reinterpret_cast<std::uint32_t(*)[2][kWarp]>(&buffers[2]));
    if (inside && master.codes) store_stored(master, i, w);
    if (inside && a.weights) {
      if (o.stochastic_rounding)
        a.weights[i] = bf16_encode_stochastic(w, random_bits(step.seed, o.first_index + i));
      else
        from_float(a.weights[i], w);
    }
    __syncthreads();  // the buffers are free again
  }
  if (measure) {
    raise_amax(m, block_max(m_amax, buffers[0]));
    raise_amax(v, block_max(v_amax, buffers[1]));
    raise_amax(master, block_max(w_amax, buffers[2]));
  } else if (partial) {
    squares = block_sum(squares, sums);
    if (threadIdx.x == 0) partial[blockIdx.x] = squares;
  }
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
    scaled_adamw_kernel<<<blocks, kGroupThreads, 0, stream()>>>(
        args, stored_args(op.master, op.master_scale), stored_args(op.m, op.m_scale),
        stored_args(op.v, op.v_scale), stored_args(op.gradient, {op.gradient_scale, {}}), op.measure,
        partial);
    if (partial) sum_stage2(op.norm_squared.as<float>(), partial, static_cast<int>(blocks), true, stream());
  }
  launched("adamw");
}

}  // namespace precbench
