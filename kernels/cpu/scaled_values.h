// Conversion between floats and chunks of a tensor stored as codes with scales (state_formats.h).
#pragma once

#include <algorithm>

#include "kernels/cpu/vector.h"
#include "kernels/device/operands.h"
#include "kernels/numerics/state_formats.h"

namespace precbench::cpu {

/// Loads n elements from `first` on, of codes with a per-tensor scale, f32 [1]; without a scale like load().
inline const float* load_scaled(const Tensor& codes, const Tensor& scale, std::int64_t first, std::int64_t n,
                                float* buffer) {
  if (scale.empty()) return load(codes, first, n, buffer);
  const float factor = 1.0f / *scale.as<float>();
  for (std::int64_t i = 0; i < n; ++i) buffer[i] = state_decode(codes.dtype, codes.data, first + i) * factor;
  return buffer;
}

/// Stores with the scale that the amax gives, recorded later, divided by `headroom`.
inline void store_scaled(const Tensor& codes, const StateScale& scale, std::int64_t first, std::int64_t n,
                         const float* values, float headroom = 1) {
  const float factor =
      state_scale(*scale.amax.as<float>(), state_max(codes.dtype) / headroom, *scale.scale.as<float>());
  for (std::int64_t i = 0; i < n; ++i) state_encode(codes.dtype, codes.data, first + i, values[i] * factor);
}

/// Raises an amax, f32 [1], to at least the one with these bits.
inline void raise_amax(const Tensor& tensor, std::int32_t bits) {
  float& amax = *tensor.as<float>();
  amax = bits_to_float(static_cast<std::uint32_t>(std::max(bits, abs_bits(amax))));
}

/// Raises the amax of a per-tensor scale.
inline void raise_amax(const StateScale& scale, std::int32_t bits) {
  if (scale.of_tensor()) raise_amax(scale.amax, bits);
}

}  // namespace precbench::cpu
