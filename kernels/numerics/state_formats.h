// Formats of optimizer state between steps, bit for bit, for host and device. FP32 and BF16 need no scale;
// the others are:
//   fp16, e4m3   one power of two for a tensor, from its amax (MS-AMP, arXiv 2310.18313)
//   coat         e4m3 in groups of 128 elements, range expanded by a power (COAT, arXiv 2410.19313)
// FP16 is a storage format only: no op computes in it.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/numerics/formats.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

enum class StateFormat : std::uint8_t { fp32, bf16, fp16, e4m3, coat };
inline constexpr int kStateFormats = 5;
const char* name_of(StateFormat format);  ///< "fp32", "bf16", "fp16", "e4m3", "coat"
/// Returns the format of a valid name.
StateFormat state_format_named(const std::string& name);

constexpr DType dtype_of(StateFormat format) {
  switch (format) {
    case StateFormat::fp32:
      return DType::f32;
    case StateFormat::bf16:
      return DType::bf16;
    case StateFormat::fp16:
      return DType::f16;
    default:
      return DType::e4m3;
  }
}

constexpr bool tensor_scaled(StateFormat format) {
  return format == StateFormat::fp16 || format == StateFormat::e4m3;
}
constexpr bool scaled(StateFormat format) { return tensor_scaled(format) || format == StateFormat::coat; }

inline constexpr float kF16Max = 65504.0f;
/// Returns the largest value of codes with a per-tensor scale.
PRECBENCH_HD constexpr float state_max(DType codes) { return codes == DType::f16 ? kF16Max : kE4m3Max; }

/// Rounds to nearest even and saturates at +-65504, infinities too. NaN gives 0x7E00.
PRECBENCH_HD constexpr std::uint16_t f16_encode(float x) {
  const std::int32_t magnitude = abs_bits(x);
  const std::int32_t clamped = magnitude < abs_bits(kF16Max) ? magnitude : abs_bits(kF16Max);
  const std::int32_t normal = ((clamped + 0xFFF + ((clamped >> 13) & 1)) >> 13) - (112 << 10);
  const std::int32_t subnormal = abs_bits(bits_to_float(clamped) + 0.5f) - abs_bits(0.5f);
  const std::uint32_t sign = (float_to_bits(x) >> 31) << 15;
  const std::uint32_t code = detail::select(clamped < (113 << 23), subnormal, normal) | sign;
  return static_cast<std::uint16_t>(detail::select(magnitude > detail::kInfBits, 0x7E00u, code));
}

PRECBENCH_HD constexpr float f16_decode(std::uint16_t code) {
  const std::int32_t magnitude = code & 0x7FFF;
  const std::int32_t normal = (magnitude << 13) + (112 << 23);
  const std::int32_t subnormal = abs_bits(static_cast<float>(magnitude) * 0x1p-24f);
  const std::uint32_t special = magnitude >= 0x7C00 ? 0x7F800000u : 0u;
  const std::uint32_t sign = static_cast<std::uint32_t>(code >> 15) << 31;
  return bits_to_float(detail::select(magnitude < 0x400, subnormal, normal) | special | sign);
}

/// Returns the multiplying scale of a tensor: the power of two 2^floor(log2(max / amax)). An amax of 0, Inf
/// or NaN keeps the previous one.
PRECBENCH_HD constexpr float state_scale(float amax, float max, float before) {
  const std::int32_t bits = abs_bits(amax);
  if (bits == 0 || bits >= detail::kInfBits) return before;
  const float scale = pow2_round_down(max / amax);
  return abs_bits(scale) == detail::kInfBits || abs_bits(scale) == 0 ? before : scale;
}

/// Elements per COAT group.
inline constexpr std::int64_t kCoatGroup = 128;

/// COAT's range expansion of a group: a code is e4m3(sgn(x) (|x| / middle)^power / scale).
struct CoatScale {
  float scale = 1, middle = 1, power = 1;
};
inline constexpr std::int64_t kCoatScaleFloats = 3;

/// Returns the expansion for a group's largest and smallest nonzero magnitude, ignoring NaN; both are 0 if
/// there are none.
PRECBENCH_HD inline CoatScale coat_scale(float largest, float smallest) {
  if (!(largest > 0.0f)) return {};
  CoatScale s;
  // Square roots of each factor, so that the product neither overflows nor underflows.
  s.middle = sqrtf(largest) * sqrtf(smallest);
  const float range = log2f(largest) - log2f(smallest);
  const float stretched = 16.0f * log2f(kE4m3Max * kE4m3Max / 2.0f);
  if (largest > smallest) s.power = fmaxf(1.0f, floorf(stretched / range)) / 16.0f;
  s.scale = powf(largest / s.middle, s.power) / kE4m3Max;
  return s;
}

PRECBENCH_HD inline std::uint8_t coat_encode(float x, const CoatScale& s) {
  const float stretched = powf(fabsf(x) / s.middle, s.power) / s.scale;
  const std::uint8_t code = e4m3_encode(stretched);
  return x < 0.0f ? static_cast<std::uint8_t>(code | 0x80) : code;
}

PRECBENCH_HD inline float coat_decode(std::uint8_t code, const CoatScale& s) {
  const float magnitude = s.middle * powf(fabsf(e4m3_decode(code)) * s.scale, 1.0f / s.power);
  return (code & 0x80) ? -magnitude : magnitude;
}

// ---- on the host

/// Returns element i of codes with a per-tensor scale, f16 or e4m3, times that scale.
inline float state_decode(DType dtype, const void* codes, std::int64_t i) {
  return dtype == DType::f16 ? f16_decode(static_cast<const std::uint16_t*>(codes)[i])
                             : e4m3_decode(static_cast<const std::uint8_t*>(codes)[i]);
}
inline void state_encode(DType dtype, void* codes, std::int64_t i, float scaled_value) {
  if (dtype == DType::f16)
    static_cast<std::uint16_t*>(codes)[i] = f16_encode(scaled_value);
  else
    static_cast<std::uint8_t*>(codes)[i] = e4m3_encode(scaled_value);
}

/// Expands the range of a group of at most kCoatGroup values and encodes them. A NaN is encoded as NaN and
/// ignored in the group's range, so the others keep theirs. An infinity leaves no range, and all become NaN.
CoatScale coat_encode_group(std::uint8_t* codes, const float* values, std::int64_t n);

}  // namespace precbench
