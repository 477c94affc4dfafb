// Helpers shared by the GPU's update rules: arguments, clipping, and loads and stores of weights, eight at a
// time.
#pragma once

#include "kernels/base/errors.h"
#include "kernels/cuda/elementwise/elements.cuh"
#include "kernels/numerics/random.h"

namespace precbench::cuda {

struct WeightArgs {
  std::uint16_t* weights;
  float* master;  // null: the weights are the master
  const StepScalars* scalars;
  const float* norm_squared;  // null if the rule does not clip
  UpdateOptions options;
  std::int64_t size;
  bool vectors;
};

inline const Tensor& leading(const Tensor& weights, const Tensor& master) {
  return master.empty() ? weights : master;
}

/// Returns the arguments of an op with weights, master, scalars and options; `vectors`: the op's other
/// tensors are aligned.
template <class Op>
WeightArgs weight_args(const Op& op, const Tensor& norm_squared, bool vectors) {
  return {op.weights.template as<std::uint16_t>(),
          op.master.template as<float>(),
          op.scalars.template as<StepScalars>(),
          norm_squared.as<float>(),
          op.options,
          leading(op.weights, op.master).size(),
          vectors && aligned(op.weights) && aligned(op.master)};
}

/// Throws Unsupported if the weights are a slice of a matrix, for rules with values of whole tensors. Tensor ranks do
/// not run them, and their kernels need fewer registers without a division per element.
inline void check_consecutive(const UpdateOptions& options) {
  if (options.index.run != 0)
    throw Unsupported("the CUDA device has no Adafactor or scaled state for slices of matrices");
}

/// Returns the factor on gradients that limits their global norm to max_norm.
__device__ inline float clip_factor(const float* norm_squared, float max_norm) {
  return max_norm > 0 ? fminf(1.0f, max_norm / (sqrtf(*norm_squared) + 1e-6f)) : 1.0f;
}

template <bool kMaster>
__device__ inline void load_weights(float (&w)[8], const WeightArgs& a, std::int64_t i) {
  if (kMaster)
    load_elements(w, a.master, i, a.size, a.vectors);
  else
    load_elements(w, a.weights, i, a.size, a.vectors);
}

/// Rounds w in place and stores it. kFull: all eight elements exist, in aligned vectors.
template <bool kMaster, bool kFull = false>
__device__ inline void store_weights(float (&w)[8], const WeightArgs& a, std::int64_t i, std::uint32_t seed) {
  const auto store = [&](auto* to) {
    if constexpr (kFull)
      store_vector(to + i, w);
    else
      store_elements(to, w, i, a.size, a.vectors);
  };
  if (kMaster) store(a.master);
  if (a.options.stochastic_rounding) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      w[j] = bf16_decode(bf16_encode_stochastic(w[j], random_bits(seed, a.options.index.of(i + j))));
  }
  if (!kMaster || a.weights) store(a.weights);
}

}  // namespace precbench::cuda
