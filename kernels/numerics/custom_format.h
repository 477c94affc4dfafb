// Formats that no processor multiplies, bit for bit: elements of any 8-bit format or grid (grid.h) with any
// scale, among them bytes with a mantissa:
//
//   e4m3    as in NVFP4, with an FP32 scale per tensor:
//           value = element * block scale * amax / (448 * max), block scale = e4m3(448 * block amax / amax)
//   ue5m3   five exponent bits (bias 15), three mantissa bits, no sign: 2^-17 to 114688; 0xFF is NaN, there is
//           no infinity. No scale per tensor: value = element * ue5m3(block amax / max)
//
// Both are rounded to nearest even, so that a block's largest element may clip by up to half a step of the
// scale. `max` is the largest value of the elements (of a grid, see there). With grids of FP4's values the
// results equal nvfp4.h's.
//
// Non-finite rule: as in formats.h, with NaN carried by the scale. A block whose amax is not finite has the
// ue5m3 scale NaN; for e4m3 the tensor's factor is not finite, and so is every value of the tensor.
#pragma once

#include <cstdint>

#include "kernels/base/errors.h"
#include "kernels/numerics/grid.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/sequence_part.h"

namespace precbench {

inline constexpr float kUe5m3Max = 114688.0f;

/// Format of COAT's kept activations: groups of 16 elements of a row.
inline constexpr QuantFormat kGroupsOf16{DType::e4m3, Granularity::block_1x16, ScaleType::ue5m3};

/// Returns true if RMSNorm and SwiGLU of every device keep an input of this width in the same pass. Other formats take
/// passes of their own.
constexpr bool keeps_directly(const QuantFormat& format, std::int64_t width) {
  return format == kGroupsOf16 && width % 16 == 0;
}

/// Returns the code of x >= 0, to nearest even; saturates. Inf and NaN give 0xFF.
PRECBENCH_HD constexpr std::uint8_t ue5m3_encode(float x) {
  const std::uint8_t code = detail::encode_minifloat<5, 3, 15>(x, kUe5m3Max, 0xFF);
  return static_cast<std::uint8_t>(detail::select(abs_bits(x) >= detail::kInfBits, 0xFFu, code));
}

PRECBENCH_HD constexpr float ue5m3_decode(std::uint8_t code) {
  const float ulp = 0x1p-17f;
  const std::uint32_t normal = (static_cast<std::uint32_t>(code) << 20) + ((127u - 15u) << 23);
  const std::uint32_t bits = detail::select(code < 8, float_to_bits(static_cast<float>(code) * ulp), normal);
  return bits_to_float(detail::select(code == 0xFF, detail::kNanBits, bits));
}

/// Returns the place of a copy's element (row r, column k) in the value of all ranks, whose width this is: the
/// index of its random number. `columns`: the copy is the value's transpose.
PRECBENCH_HD constexpr std::uint64_t place_of_element(const RowMap& rows, std::int64_t width, bool columns,
                                                      std::int64_t r, std::int64_t k) {
  return static_cast<std::uint64_t>(columns ? rows.of(k) * width + r : rows.of(r) * width + k);
}

/// Returns the code of an element from the byte that it shares: element 2 i has the low half of byte i.
PRECBENCH_HD constexpr std::uint8_t code_of_two(std::uint8_t byte, std::int64_t at) {
  return static_cast<std::uint8_t>(byte >> 4 * (at % 2) & 0xF);
}

/// Throws Unsupported if rows of k codes do not fill whole bytes.
inline void check_whole_bytes(const QuantFormat& format, std::int64_t k) {
  if (format.dtype == DType::grid4 && k % 2 != 0)
    throw Unsupported("grids of up to 16 values have two codes a byte, so rows of an even length");
}

/// Returns the element at `at` of quantized data, in the format's own units. On the host.
inline float value_of_code(const QuantFormat& format, const void* data, std::int64_t at) {
  const auto* codes = static_cast<const std::uint8_t*>(data);
  if (held_in_bf16(format.dtype)) return bf16_decode(static_cast<const std::uint16_t*>(data)[at]);
  switch (format.dtype) {
    case DType::e4m3:
      return e4m3_decode(codes[at]);
    case DType::e5m2:
      return e5m2_decode(codes[at]);
    case DType::grid:
      return grid_decode(*format.grid, codes[at]);
    case DType::grid4:
      return grid_decode(*format.grid, code_of_two(codes[at / 2], at));
    default:
      return e2m1_decode(code_of_two(codes[at / 2], at));
  }
}

/// Inputs of a scale besides the amax. Trivially copyable, for kernel parameters.
struct ScaleRule {
  ScaleType type = ScaleType::none;
  ScaleRounding rounding = ScaleRounding::none;
  int mantissa_bits = 0;  ///< of the elements
  float max = 0;          ///< of the elements
};

/// Returns the rule of a format; on the host, since a grid is there.
inline ScaleRule scale_rule(const QuantFormat& format) {
  if (format.grid) return {format.scale, format.scale_rounding, format.grid->mantissa_bits, format.grid->max};
  return {format.scale, format.scale_rounding, mantissa_bits_of(format.dtype, format.dropped_bits),
          format_max(format.dtype, format.dropped_bits)};
}

/// Returns the largest value in half steps between it and the next smaller one, as half_steps_of_max does.
inline float half_steps_at_end(const QuantFormat& format) {
  if (!format.grid) return half_steps_of_max(format.dtype, format.dropped_bits);
  const Grid& grid = *format.grid;
  const bool top = grid.max == grid.values[grid.count - 1];
  const float step = top ? grid.max - grid.values[grid.count - 2] : grid.values[1] - grid.values[0];
  return 2 * grid.max / step;
}

/// A scope's scale in both directions, and as it is stored.
struct CustomScale {
  float multiply;    ///< elements, before the cast
  float dequantize;  ///< without the tensor's factor; stored for FP32 scales
  std::uint8_t byte;
};

/// Returns the scale that multiplies a tensor before its e4m3 block scales are computed (nvfp4.h).
PRECBENCH_HD constexpr float custom_tensor_scale(float max, float tensor_amax) {
  const float scale = kE4m3Max * max / tensor_amax;
  if (tensor_amax == 0.0f || scale == 0.0f) return 1.0f;
  return abs_bits(scale) == detail::kInfBits ? bits_to_float(0x7F7FFFFFu) : scale;
}

/// Returns the factor of the tensor on element times block scale: 1 except for e4m3 scales.
PRECBENCH_HD constexpr float custom_tensor_factor(const ScaleRule& rule, float tensor_amax) {
  return rule.type == ScaleType::e4m3 ? tensor_amax / (kE4m3Max * rule.max) : 1.0f;
}

/// Returns 1 / step, finite also for a step of 0, whose block becomes 0.
PRECBENCH_HD constexpr float custom_multiplier(float step) {
  const float largest = bits_to_float(0x7F7FFFFFu);
  if (step == 0.0f) return largest;
  const float multiplier = 1.0f / step;
  return abs_bits(multiplier) == detail::kInfBits ? largest : multiplier;
}

/// Returns the scale of a scope with this amax. `tensor_amax`: for e4m3 only.
PRECBENCH_HD constexpr CustomScale custom_scale(const ScaleRule& rule, float amax, float tensor_amax) {
  if (rule.type == ScaleType::ue8m0) {
    const std::uint8_t byte = ue8m0_from_range(amax, rule.max, rule.mantissa_bits, rule.rounding);
    return {ue8m0_multiplier(byte), ue8m0_decode(byte), byte};
  }
  if (rule.type == ScaleType::e4m3) {
    const float tensor_scale = custom_tensor_scale(rule.max, tensor_amax);
    const std::uint8_t byte = e4m3_encode(amax * (tensor_scale * (1.0f / rule.max)));
    return {custom_multiplier(e4m3_decode(byte) * (1.0f / tensor_scale)), e4m3_decode(byte), byte};
  }
  if (rule.type == ScaleType::ue5m3) {
    const std::uint8_t byte = ue5m3_encode(amax * (1.0f / rule.max));
    return {custom_multiplier(ue5m3_decode(byte)), ue5m3_decode(byte), byte};
  }
  const float scale = fp32_scale(amax, rule.max);
  const float multiply = rule.type == ScaleType::f32_pow2 ? pow2_round_down(scale) : scale;
  return {multiply, 1.0f / multiply, 0};
}

/// Returns the stored scale as a number, without the tensor's factor. `index`: of the scale in the buffer.
PRECBENCH_HD constexpr float stored_scale(ScaleType type, const void* scales, std::int64_t index) {
  const auto* bytes = static_cast<const std::uint8_t*>(scales);
  switch (type) {
    case ScaleType::ue8m0:
      return ue8m0_decode(bytes[index]);
    case ScaleType::e4m3:
      return e4m3_decode(bytes[index]);
    case ScaleType::ue5m3:
      return ue5m3_decode(bytes[index]);
    default:
      return static_cast<const float*>(scales)[index];
  }
}

}  // namespace precbench
