// FP4 beside TransformerEngine's NVFP4 (nvfp4.h), bit for bit: Hadamard transforms of any length, MXFP4, Quartet's scales from
// deviations, Quartet II's two scales and its corrected ones. Sums are of exact products in FP64 and in a fixed order, so
// that fused multiply-adds change nothing and every device has the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/numerics/nvfp4.h"

namespace precbench {

/// The longest block and the longest transform.
inline constexpr int kFp4LongestBlock = 32, kLongestTransform = 128;

// ---- Hadamard transforms

/// What a sum of `length` +-x is multiplied with.
PRECBENCH_HD constexpr float hadamard_factor(int length) {
  return length == 16 ? 0.25f : length == 32 ? 0x1.6a09e6p-3f : length == 64 ? 0.125f : 0x1.6a09e6p-4f;
}

/// A set bit is a minus, of element i of every transform.
struct SignBits {
  std::uint32_t words[kLongestTransform / 32];

  PRECBENCH_HD constexpr bool minus(int i) const { return words[i / 32] >> (i % 32) & 1u; }
};

/// The signs of a transform; `stream` tells random ones apart, in a step that has this word.
PRECBENCH_HD constexpr SignBits sign_bits(Signs signs, std::uint32_t word, std::uint32_t stream) {
  SignBits bits{};
  for (int i = 0; i < kLongestTransform / 32; ++i)
    bits.words[i] = signs == Signs::none ? 0
                    : signs == Signs::te
                        ? kHadamardSigns | kHadamardSigns << 16
                        : random_bits(stream_seed(word, stream), static_cast<std::uint64_t>(i));
  return bits;
}

/// x = x H, H Sylvester's.
PRECBENCH_HD constexpr void hadamard_sums(float* x, int length) {
  for (int half = 1; half < length; half *= 2)
    for (int i = 0; i < length; ++i) {
      if (i & half) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
}
/// x = (x o signs) H / sqrt(length), rounded to BF16. Orthogonal but for the rounding: applied to both operands along their
/// contraction it leaves the product as it is.
PRECBENCH_HD constexpr void hadamard_transform(float* x, int length, const SignBits& signs) {
  for (int i = 0; i < length; ++i)
    if (signs.minus(i)) x[i] = -x[i];
  hadamard_sums(x, length);
  const float factor = hadamard_factor(length);
  for (int i = 0; i < length; ++i) x[i] = bf16_decode(bf16_encode(x[i] * factor));
}

// ---- scales of blocks

/// floor(log2(x)) as a ue8m0 byte, of x > 0.
PRECBENCH_HD constexpr std::uint8_t ue8m0_round_down(float x) {
  const std::int32_t bits = abs_bits(x);
  return bits >= detail::kInfBits ? 0xFF : static_cast<std::uint8_t>(bits >> 23);
}

/// The least mean squared error of a normal block in e2m1 wants its standard deviation here, over 6.
inline constexpr float kQuestDeviation = 2.92247856f / kE2m1Max;

/// Quartet's scale of a block: the power of two at or below kQuestDeviation times its standard deviation. Larger elements
/// saturate.
PRECBENCH_HD inline std::uint8_t quest_scale(const float* x, int n) {
  double squares = 0, sum = 0;
  for (int i = 0; i < n; ++i) {
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    sum += static_cast<double>(x[i]);
  }
  const double mean = static_cast<double>(static_cast<float>(sum / n));
  const double variance = squares / n - mean * mean;
  if (!(variance - variance == 0)) return 0xFF;  // not finite
  const float deviation = variance >= 0 ? static_cast<float>(std::sqrt(variance)) : 1.0f;
  return ue8m0_round_down(
      static_cast<float>(static_cast<double>(kQuestDeviation) * static_cast<double>(deviation) + 1e-8));
}

/// Whether the cast of x clips under this scale.
PRECBENCH_HD constexpr bool fp4_clips(float x, std::uint8_t scale) {
  const float scaled = x * ue8m0_multiplier(scale);
  return scaled <= -kE2m1Max || scaled >= kE2m1Max;
}

/// What Quartet II multiplies a tensor's block scales with.
PRECBENCH_HD constexpr float quartet2_tensor_step(float amax, const QuantFormat& format) {
  if (amax == 0.0f) return 1.0f;
  return amax / format.global_scale / (kE2m1Max * format.element_scale);
}

/// A block's e4m3 scale under that; 1 where it would be 0.
PRECBENCH_HD constexpr std::uint8_t quartet2_block_scale(float block_amax, float tensor_step,
                                                         const QuantFormat& format) {
  const std::uint8_t code = e4m3_encode(block_amax / (kE2m1Max * format.element_scale) / tensor_step);
  constexpr std::uint8_t kOne = 0x38;
  return code == 0 ? kOne : code;
}

/// The squared error of a block's cast to `step` times e2m1.
PRECBENCH_HD constexpr double fp4_squared_error(const float* x, int n, float step) {
  double error = 0;
  for (int i = 0; i < n; ++i) {
    const double q = static_cast<double>(e2m1_decode(e2m1_encode(x[i] / step)));
    const float difference = static_cast<float>(q * static_cast<double>(step) - static_cast<double>(x[i]));
    error += static_cast<double>(difference) * static_cast<double>(difference);
  }
  return error;
}

/// The e4m3 code of x >= 0, rounded up with a probability equal to the discarded fraction; 448 at most. NaN gives NaN.
PRECBENCH_HD constexpr std::uint8_t e4m3_encode_stochastic(float x, std::uint32_t random) {
  if (abs_bits(x) > detail::kInfBits) return 0x7F;
  if (x >= kE4m3Max) return e4m3_encode(kE4m3Max);
  std::uint8_t low = e4m3_encode(x);
  if (e4m3_decode(low) > x) --low;
  const float below = e4m3_decode(low), above = e4m3_decode(static_cast<std::uint8_t>(low + 1));
  const double rest = static_cast<double>((x - below) / (above - below));  // exact: steps are powers of two
  return static_cast<double>(random) < rest * 0x1p32 ? static_cast<std::uint8_t>(low + 1) : low;
}

/// EDEN's correction of a block: what its codes must be multiplied with for x to project onto itself.
PRECBENCH_HD constexpr float eden_correction(const float* x, int n, float step) {
  double squares = 0, products = 0;
  for (int i = 0; i < n; ++i) {
    const float scaled = x[i] / step;
    squares += static_cast<double>(scaled) * static_cast<double>(scaled);
    products += static_cast<double>(scaled) * static_cast<double>(e2m1_decode(e2m1_encode(scaled)));
  }
  return products == 0 ? 1.0f : static_cast<float>(squares / products);
}

// ---- a block

/// How the elements of a block become codes, and the scale that stands beside them.
struct Fp4Block {
  std::uint8_t scale;  ///< e4m3 or ue8m0
  bool divide;         ///< elements are divided by `factor`, else multiplied with it
  float factor;

  PRECBENCH_HD constexpr float scaled(float x) const { return divide ? x / factor : x * factor; }
};

/// Whether a format has Quartet II's order of operations rather than TransformerEngine's.
PRECBENCH_HD constexpr bool in_order_of_quartet2(const QuantFormat& format) {
  return format.global_scale != 448;
}

/// The scale of a block of n elements x with this amax (of the square, where it is one), in a tensor with that. `random`:
/// 32 bits for EDEN's scale.
PRECBENCH_HD inline Fp4Block fp4_block(const QuantFormat& format, const float* x, int n, float block_amax,
                                       float tensor_amax, std::uint32_t random) {
  if (format.scale == ScaleType::ue8m0) {
    const std::uint8_t scale = format.scale_rounding == ScaleRounding::quest
                                   ? quest_scale(x, n)
                                   : ue8m0_from_amax(block_amax, DType::e2m1, format.scale_rounding);
    return {scale, false, ue8m0_multiplier(scale) * format.element_scale};
  }
  if (!in_order_of_quartet2(format)) {
    const float tensor_scale = nvfp4_tensor_scale(tensor_amax);
    const std::uint8_t scale = nvfp4_block_scale(block_amax, tensor_scale);
    return {scale, false, nvfp4_multiplier(scale, tensor_scale)};
  }
  const float tensor_step = quartet2_tensor_step(tensor_amax, format);
  std::uint8_t scale = quartet2_block_scale(block_amax, tensor_step, format);
  float step = e4m3_decode(scale) * tensor_step;
  if (format.four_over_six) {
    const std::uint8_t four = quartet2_block_scale(1.5f * block_amax, tensor_step, format);
    const float four_step = e4m3_decode(four) * tensor_step;
    if (fp4_squared_error(x, n, four_step) < fp4_squared_error(x, n, step)) scale = four, step = four_step;
  }
  if (format.eden) scale = e4m3_encode_stochastic(e4m3_decode(scale) * eden_correction(x, n, step), random);
  return {scale, true, step};
}

/// What code times scale of this tensor must be multiplied with.
PRECBENCH_HD constexpr float fp4_tensor_factor(const QuantFormat& format, float amax) {
  if (format.scale == ScaleType::ue8m0) return 1.0f / format.element_scale;
  return in_order_of_quartet2(format) ? quartet2_tensor_step(amax, format) : amax / kNvfp4Max;
}

/// The factor that brings sums of products of two FP4 tensors back: a GEMM's alpha.
PRECBENCH_HD constexpr float fp4_alpha(const QuantFormat& a, const QuantFormat& b, float amax_a,
                                       float amax_b) {
  const bool nvfp4 = a.scale == ScaleType::e4m3 && !in_order_of_quartet2(a) && b.scale == ScaleType::e4m3 &&
                     !in_order_of_quartet2(b);
  return nvfp4 ? nvfp4_alpha(amax_a, amax_b) : fp4_tensor_factor(a, amax_a) * fp4_tensor_factor(b, amax_b);
}

}  // namespace precbench
