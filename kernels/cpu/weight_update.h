// Helpers shared by the CPU device's update rules: chunks of elements, clipping, and storing of new weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/vector.h"
#include "kernels/device/operands.h"

namespace precbench::cpu {

/// Elements that a rule processes at a time.
inline constexpr std::int64_t kUpdateChunk = 4096;
inline std::int64_t update_chunks(std::int64_t size) { return (size + kUpdateChunk - 1) / kUpdateChunk; }

/// Runs body(first, n, buffers) over chunks of [0, size); `buffers`: that many consecutive chunk buffers.
template <class Body>
void for_update_chunks(int threads, std::int64_t size, int buffers, Body&& body) {
  for_rows(threads, update_chunks(size), buffers * kUpdateChunk, [&](std::int64_t chunk, float* buffer) {
    const std::int64_t first = chunk * kUpdateChunk;
    body(first, std::min(kUpdateChunk, size - first), buffer);
  });
}

inline StepScalars step_scalars(const Tensor& scalars) {
  StepScalars step;
  std::memcpy(&step, scalars.data, sizeof step);
  return step;
}

/// Returns the factor on gradients that limits their global norm to max_norm.
inline float clip_factor(const Tensor& norm_squared, float max_norm) {
  const float norm = std::sqrt(*norm_squared.as<float>());
  return max_norm > 0 ? std::min(1.0f, max_norm / (norm + 1e-6f)) : 1.0f;
}

/// Stores n new weights at `first`: into the master if there is one, and rounded into the weights if they are
/// kept.
inline void store_weights(const Tensor& weights, const Tensor& master, std::int64_t first, std::int64_t n,
                          const float* w, const UpdateOptions& options, std::uint32_t seed) {
  if (!master.empty()) store(master, first, n, w);
  if (weights.empty()) return;
  if (!options.stochastic_rounding) {
    store(weights, first, n, w);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    weights.as<std::uint16_t>()[first + i] =
        bf16_encode_stochastic(w[i], random_bits(seed, options.index.of(first + i)));
}

}  // namespace precbench::cpu
