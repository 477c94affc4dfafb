// NVFP4, bit for bit: e2m1 elements, an e4m3 scale for every 16 of them (or 16x16), and one FP32 scale for
// the tensor; and stochastic rounding to e2m1. The order of operations is TransformerEngine's (arXiv
// 2509.25149).
//
//   value = code * block scale * amax / (6 * 448)
//
// Non-finite rule: e2m1 has no NaN, so the scales carry it. A NaN makes its block's scale and the tensor's
// amax NaN, an Inf makes the amax Inf. A GEMM's alpha is then non-finite, and so are all its results.
#pragma once

#include <cstdint>

#include "kernels/numerics/formats.h"

namespace precbench {

/// Largest magnitude that block scale and element can represent together.
inline constexpr float kNvfp4Max = kE4m3Max * kE2m1Max;

/// Returns the scale that multiplies a tensor with this amax before block scales are computed. 1 if it would
/// be 0 or non-finite.
PRECBENCH_HD constexpr float nvfp4_tensor_scale(float amax) {
  const float scale = kNvfp4Max / amax;
  if (amax == 0.0f || scale == 0.0f) return 1.0f;
  return abs_bits(scale) == detail::kInfBits ? bits_to_float(0x7F7FFFFFu) : scale;
}

/// Returns the factor of a GEMM of two NVFP4 tensors: its alpha.
PRECBENCH_HD constexpr float nvfp4_alpha(float amax_a, float amax_b) {
  return amax_a * amax_b * (1.0f / (kNvfp4Max * kNvfp4Max));
}

/// Returns the e4m3 code of a block's scale; 0 for a block that is too small relative to the tensor's amax.
PRECBENCH_HD constexpr std::uint8_t nvfp4_block_scale(float block_amax, float tensor_scale) {
  return e4m3_encode(block_amax * (tensor_scale * (1.0f / kE2m1Max)));
}

/// Returns the factor on a block's elements before the cast; finite even for a scale of 0.
PRECBENCH_HD constexpr float nvfp4_multiplier(std::uint8_t block_scale, float tensor_scale) {
  const float largest = bits_to_float(0x7F7FFFFFu);
  const float step = e4m3_decode(block_scale) * (1.0f / tensor_scale);
  if (step == 0.0f) return largest;
  const float multiplier = 1.0f / step;
  return abs_bits(multiplier) == detail::kInfBits ? largest : multiplier;
}

/// Rounds away from zero with a probability equal to the discarded fraction, truncated to 8 bits as in
/// hardware. `random` supplies 8 bits (its low byte). Values out of range saturate, NaN gives +6 like
/// e2m1_encode.
PRECBENCH_HD constexpr std::uint8_t e2m1_encode_stochastic(float x, std::uint32_t random) {
  const std::int32_t r = static_cast<std::int32_t>(random & 0xFFu);
  const std::int32_t magnitude = abs_bits(x);
  const std::int32_t clamped = magnitude < abs_bits(kE2m1Max) ? magnitude : abs_bits(kE2m1Max);
  // From 1 on, the bits below the one mantissa bit plus the random bits carry or not.
  const std::int32_t normal = ((clamped + (r << 14)) >> 22) - (126 << 1);
  // Below 1 the step is 0.5: both sides of the comparisons are exact.
  const float steps = 2.0f * bits_to_float(static_cast<std::uint32_t>(clamped));
  const float rest = static_cast<float>(r) * 0x1p-8f;
  const std::int32_t subnormal = (steps >= 1.0f - rest ? 1 : 0) + (steps >= 2.0f - rest ? 1 : 0);
  const std::uint32_t code = static_cast<std::uint32_t>(clamped < abs_bits(1.0f) ? subnormal : normal);
  const std::uint32_t sign = (float_to_bits(x) >> 31) << 3;
  return static_cast<std::uint8_t>(detail::select(magnitude > detail::kInfBits, 0x7u, code | sign));
}

/// Returns the seed of a stream of random numbers in a step with this random word.
PRECBENCH_HD constexpr std::uint64_t stream_seed(std::uint32_t word, std::uint32_t stream) {
  return static_cast<std::uint64_t>(word) << 32 | stream;
}

/// Returns the random byte of element `index` of a tensor.
PRECBENCH_HD constexpr std::uint32_t random_byte(std::uint64_t seed, std::uint64_t index) {
  return random_bits(seed, index / 4) >> (8 * (index % 4)) & 0xFFu;
}

/// TransformerEngine's signs of a 16-element Hadamard transform, +++-+------+-+--: a set bit is a minus.
inline constexpr std::uint32_t kHadamardSigns = 0xD7E8;

}  // namespace precbench
