// AdamW with moments, master or gradient stored with scales: FP16 or e4m3 with one power of two per tensor,
// or COAT's groups of 128. A thread processes eight elements at a time, so a group belongs to half a warp,
// which finds its extremes by shuffles.
#include <algorithm>

#include "kernels/cuda/elementwise/scaled_values.cuh"
#include "kernels/cuda/elementwise/weight_update.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kGroupLanes = static_cast<int>(kCoatGroup) / 8;
constexpr int kScaledBlocksPerSm = 16;

__device__ inline CoatScale* coat_scales(const StoredArgs& a) {
  return reinterpret_cast<CoatScale*>(a.scale);
}

/// Returns the largest key of a group's lanes. All lanes of the warp must call it.
__device__ inline std::uint32_t group_max(std::uint32_t key) {
#pragma unroll
  for (int step = kGroupLanes / 2; step > 0; step /= 2) key = max(key, __shfl_xor_sync(kAllLanes, key, step));
  return key;
}

/// Returns the scale for the group's largest and smallest nonzero magnitude. A NaN is ignored: it is encoded
/// as NaN, and its neighbours keep their range.
__device__ inline CoatScale group_scale(const float (&x)[8]) {
  constexpr std::uint32_t kInf = 0x7F800000u;
  // Keys for the smallest are in reversed order, with 0 still the least.
  std::uint32_t largest = 0, smallest_key = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const auto bits = static_cast<std::uint32_t>(abs_bits(x[j]));
    if (bits == 0 || bits > kInf) continue;
    largest = max(largest, bits);
    smallest_key = max(smallest_key, kInf + 1 - bits);
  }
  largest = group_max(largest);
  smallest_key = group_max(smallest_key);
  return coat_scale(bits_to_float(largest), bits_to_float(smallest_key == 0 ? 0u : kInf + 1 - smallest_key));
}

template <bool kGroups>
__device__ inline void widen_moment(float (&x)[8], const StoredArgs& a, const EightStored& eight,
                                    std::int64_t i, std::int64_t size, float factor) {
  if (!kGroups || a.stored != Stored::coat) return widen_stored(x, a, eight, factor);
  if (i >= size) {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = 0;
    return;
  }
  const CoatScale scale = coat_scales(a)[i / kCoatGroup];
#pragma unroll
  for (int j = 0; j < 8; ++j)
    x[j] = coat_decode(static_cast<std::uint8_t>(eight.word[j / 4] >> (8 * (j % 4))), scale);
}

/// All lanes of the warp must call it; x is 0 beyond the end.
template <bool kGroups>
__device__ inline void store_moment(const StoredArgs& a, std::int64_t i, std::int64_t size,
                                    const float (&x)[8], float factor) {
  if (!kGroups || a.stored != Stored::coat) return store_stored(a, i, size, x, factor);
  const CoatScale scale = group_scale(x);
  if (i >= size) return;
  EightStored eight = {};
#pragma unroll
  for (int j = 0; j < 8; ++j)
    eight.word[j / 4] |= static_cast<std::uint32_t>(coat_encode(x[j], scale)) << (8 * (j % 4));
  put_eight<1>(a.codes, eight, i, size, a.vectors);
  // The group's lanes have read the old scale before the shuffles above.
  if (i % kCoatGroup == 0) coat_scales(a)[i / kCoatGroup] = scale;
}

struct ScaledFactors {
  float kept, fresh;
};
__device__ inline ScaledFactors factors_of(const StoredArgs& a, bool measure) {
  return {kept_factor(a), measure ? 1.0f : new_factor(a)};
}

__device__ inline void update_moments(float (&mean)[8], float (&square)[8], const float (&g)[8],
                                      const UpdateOptions& o, float clip) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float clipped = g[j] * clip;
    mean[j] = o.beta1 * mean[j] + (1.0f - o.beta1) * clipped;
    square[j] = o.beta2 * square[j] + (1.0f - o.beta2) * clipped * clipped;
  }
}

__device__ inline void update_weights(float (&w)[8], const float (&mean)[8], const float (&square)[8],
                                      const UpdateOptions& o, const StepScalars& step) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float root = __fsqrt_rn(__fdiv_rn(square[j], step.bias_correction2)) + o.eps;
    const float update = __fdiv_rn(__fdiv_rn(mean[j], step.bias_correction1), root);
    w[j] -= step.lr * (update + o.weight_decay * w[j]);
  }
}

/// `source`: the updated values, the master or the weights. `master`: without codes if the weights are their
/// own. kMeasure: compute only the amaxes of what the other pass will store. kGroups: a moment uses COAT's
/// groups. `partial`: sums of the gradient's squares by block; null: none.
template <bool kMeasure, bool kGroups>
__global__ void __launch_bounds__(kElementThreads, kGroups ? 2 : 3)
    scaled_adamw_kernel(const WeightArgs a, const StoredArgs source, const StoredArgs master,
                        const StoredArgs m, const StoredArgs v, const StoredArgs gradient, double* partial) {
  wait_for_work_before();
  __shared__ std::uint32_t buffers[3][kWarp];
  __shared__ double sums[kWarp];
  const StepScalars step = *a.scalars;
  const UpdateOptions& o = a.options;
  const float clip = clip_factor(a.norm_squared, o.max_norm);
  const bool updates = !kMeasure || master.amax;
  const ScaledFactors of_m = factors_of(m, kMeasure), of_v = factors_of(v, kMeasure),
                      of_w = factors_of(master, kMeasure);
  const float g_factor = kept_factor(gradient);
  std::uint32_t m_amax = 0, v_amax = 0, w_amax = 0;
  double squares = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  // All threads of a block run the same number of iterations, for the shuffles.
  for (std::int64_t first = first_element() - threadIdx.x * 8; first < a.size; first += stride) {
    const std::int64_t i = first + threadIdx.x * 8;
    // All loads of a thread are issued before the first use.
    const EightStored means = fetch_stored(m, i, a.size), second = fetch_stored(v, i, a.size);
    const EightStored gradients = fetch_stored(gradient, i, a.size);
    EightStored weights = {};
    if (updates) weights = fetch_stored(source, i, a.size);
    float mean[8], square[8], g[8], w[8] = {};
    widen_moment<kGroups>(mean, m, means, i, a.size, of_m.kept);
    widen_moment<kGroups>(square, v, second, i, a.size, of_v.kept);
    widen_stored(g, gradient, gradients, g_factor);
    update_moments(mean, square, g, o, clip);
    if (updates) {
      widen_stored(w, source, weights, of_w.kept);
      update_weights(w, mean, square, o, step);
    }
    if constexpr (kMeasure) {
      m_amax = amax_of(m_amax, mean), v_amax = amax_of(v_amax, square);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (i + j < a.size) w_amax = max(w_amax, static_cast<std::uint32_t>(abs_bits(w[j])));
      continue;
    }
    if (partial) {
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += static_cast<double>(g[j]) * g[j];
    }
    store_moment<kGroups>(m, i, a.size, mean, of_m.fresh);
    store_moment<kGroups>(v, i, a.size, square, of_v.fresh);
    if (master.codes) store_stored(master, i, a.size, w, of_w.fresh);
    if (!a.weights) continue;
    if (o.stochastic_rounding) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        w[j] = bf16_decode(bf16_encode_stochastic(w[j], random_bits(step.seed, o.index.first + i + j)));
    }
    store_elements(a.weights, w, i, a.size, a.vectors);
  }
  if constexpr (kMeasure) {
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
  check_consecutive(op.options);
  const WeightArgs args = weight_args(op, op.norm_squared, true);
  const auto blocks =
      std::min(element_blocks(args.size), static_cast<unsigned>(sm_count() * kScaledBlocksPerSm));
  const bool sums = op.options.max_norm <= 0 && !op.measure;
  double* partial = sums ? static_cast<double*>(scratch(std::max(1u, blocks) * sizeof(double))) : nullptr;
  const bool groups = op.m_scale.groups() || op.v_scale.groups();
  const auto kernel = op.measure ? groups ? scaled_adamw_kernel<true, true> : scaled_adamw_kernel<true, false>
                      : groups ? scaled_adamw_kernel<false, true>
                                 : scaled_adamw_kernel<false, false>;
  if (args.size > 0) {
    kernel<<<blocks, kElementThreads, 0, stream()>>>(
        args, stored_args(leading(op.weights, op.master), op.master_scale),
        stored_args(op.master, op.master_scale), stored_args(op.m, op.m_scale), stored_args(op.v, op.v_scale),
        stored_args(op.gradient, {op.gradient_scale, {}}), partial);
    if (partial) sum_stage2(op.norm_squared.as<float>(), partial, static_cast<int>(blocks), true, stream());
  }
  launched("adamw");
}

}  // namespace precbench
