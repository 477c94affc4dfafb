// FP4 beside TransformerEngine's NVFP4 (nvfp4.h), bit for bit: Hadamard transforms of any length, MXFP4, Quartet's scales from
// deviations, Quartet II's two scales and its corrected ones. Sums are of exact products in FP64 and in a fixed order, so
// that fused multiply-adds change nothing and every device has the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

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

  PRECBENCH_HD constexpr std::uint32_t bit(int i) const { return words[i / 32] >> (i % 32) & 1u; }
  PRECBENCH_HD constexpr float apply(float x, int i) const {
    return bits_to_float(float_to_bits(x) ^ bit(i) << 31);
  }
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

namespace detail {

/// Sums and differences of elements `kHalf` apart: a constant, so that the loop vectorises.
template <int kHalf>
PRECBENCH_HD constexpr void butterflies(float* x, int length) {
  for (int first = 0; first < length; first += 2 * kHalf)
    for (int i = first; i < first + kHalf; ++i) {
      const float a = x[i], b = x[i + kHalf];
      x[i] = a + b;
      x[i + kHalf] = a - b;
    }
}

}  // namespace detail

/// x = x H, H Sylvester's.
template <int length>
PRECBENCH_HD constexpr void hadamard_sums(float* x) {
  detail::butterflies<1>(x, length);
  detail::butterflies<2>(x, length);
  detail::butterflies<4>(x, length);
  detail::butterflies<8>(x, length);
  if constexpr (length > 16) detail::butterflies<16>(x, length);
  if constexpr (length > 32) detail::butterflies<32>(x, length);
  if constexpr (length > 64) detail::butterflies<64>(x, length);
}

/// x = (x o signs) H / sqrt(length), rounded to BF16. Orthogonal but for the rounding: applied to both operands along their
/// contraction it leaves the product as it is.
template <int length>
PRECBENCH_HD constexpr void hadamard_transform(float* x, const SignBits& signs) {
  for (int i = 0; i < length; ++i) x[i] = signs.apply(x[i], i);
  hadamard_sums<length>(x);
  const float factor = hadamard_factor(length);
  for (int i = 0; i < length; ++i) x[i] = bf16_decode(bf16_encode(x[i] * factor));
}

/// body(std::integral_constant<int, length>()): known where the loops are compiled.
template <class Body>
void with_length(int length, Body&& body) {
  if (length == 16) return body(std::integral_constant<int, 16>());
  if (length == 32) return body(std::integral_constant<int, 32>());
  if (length == 64) return body(std::integral_constant<int, 64>());
  body(std::integral_constant<int, 128>());
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
template <int n>
PRECBENCH_HD inline std::uint8_t quest_scale(const float* x) {
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

/// e2m1_decode(e2m1_encode(x)) without the code in between; NaN stays.
PRECBENCH_HD constexpr float e2m1_value(float x) { return round_to_narrower(x, DType::e2m1); }

/// What a block's cast to `step` times e2m1 loses, rounded once: q step needs more bits than a float has.
template <int n>
PRECBENCH_HD inline void fp4_errors(float (&errors)[n], const float* x, float step) {
  for (int i = 0; i < n; ++i) errors[i] = std::fma(e2m1_value(x[i] / step), step, -x[i]);
}

/// Whether `four` has less squared error than `six`, two steps for one block. Sums have a loop of their own, so that what
/// they add up vectorises.
template <int n>
PRECBENCH_HD inline bool four_is_better(const float* x, float six, float four) {
  float errors[n], others[n];
  fp4_errors(errors, x, six);
  fp4_errors(others, x, four);
  double sum = 0, other = 0;
  for (int i = 0; i < n; ++i) {
    sum += static_cast<double>(errors[i]) * static_cast<double>(errors[i]);
    other += static_cast<double>(others[i]) * static_cast<double>(others[i]);
  }
  return other < sum;
}

/// The e4m3 code of x >= 0, rounded up with a probability equal to the discarded fraction; 448 at most. NaN gives NaN.
/// Without branches, which would go either way.
PRECBENCH_HD constexpr std::uint8_t e4m3_encode_stochastic(float x, std::uint32_t random) {
  const float clamped = x > kE4m3Max ? kE4m3Max : x;
  const int nearest = e4m3_encode(clamped);
  const int low = nearest - (e4m3_decode(static_cast<std::uint8_t>(nearest)) > clamped ? 1 : 0);
  const float below = e4m3_decode(static_cast<std::uint8_t>(low));
  const float above = e4m3_decode(static_cast<std::uint8_t>(low + 1));
  // Exact, since steps are powers of two; NaN of NaN and at the end, and then not above any number.
  const double rest = static_cast<double>((clamped - below) / (above - below));
  return static_cast<std::uint8_t>(low + (static_cast<double>(random) < rest * 0x1p32 ? 1 : 0));
}

/// What EDEN's correction of some blocks is made of: sums over their scaled elements.
struct EdenSums {
  double squares = 0;
  double products = 0;  ///< of elements and their codes

  PRECBENCH_HD constexpr void add(const EdenSums& other) {
    squares += other.squares;
    products += other.products;
  }
  /// What the codes must be multiplied with for the elements to project onto themselves.
  PRECBENCH_HD constexpr float correction() const {
    return products == 0 ? 1.0f : static_cast<float>(squares / products);
  }
};

template <int n>
PRECBENCH_HD constexpr EdenSums eden_sums(const float* x, float step) {
  float scaled[n] = {}, codes[n] = {};
  for (int i = 0; i < n; ++i) scaled[i] = x[i] / step;
  for (int i = 0; i < n; ++i) codes[i] = e2m1_value(scaled[i]);
  EdenSums sums;
  for (int i = 0; i < n; ++i) {
    sums.squares += static_cast<double>(scaled[i]) * static_cast<double>(scaled[i]);
    sums.products += static_cast<double>(scaled[i]) * static_cast<double>(codes[i]);
  }
  return sums;
}

/// A block's e4m3 scale, corrected. `random`: 32 bits.
PRECBENCH_HD constexpr std::uint8_t eden_scale(std::uint8_t scale, float correction, std::uint32_t random) {
  return e4m3_encode_stochastic(e4m3_decode(scale) * correction, random);
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

/// The scale that a block with this amax begins with (of the square, where it is one), in a tensor with that; not quest's.
PRECBENCH_HD constexpr std::uint8_t fp4_scale_of_amax(const QuantFormat& format, float block_amax,
                                                      float tensor_amax) {
  if (format.scale == ScaleType::ue8m0)
    return ue8m0_from_amax(block_amax, DType::e2m1, format.scale_rounding);
  return in_order_of_quartet2(format)
             ? quartet2_block_scale(block_amax, quartet2_tensor_step(tensor_amax, format), format)
             : nvfp4_block_scale(block_amax, nvfp4_tensor_scale(tensor_amax));
}

/// How a block of n elements x is cast that begins with `scale`, and with four_over_six might have `four` instead, the scale
/// of 3/2 its amax; EDEN's scale is corrected afterwards (eden_scale).
template <int n>
PRECBENCH_HD inline Fp4Block fp4_block(const QuantFormat& format, const float* x, std::uint8_t scale,
                                       std::uint8_t four, float tensor_amax) {
  if (format.scale == ScaleType::ue8m0) {
    if (format.scale_rounding == ScaleRounding::quest) scale = quest_scale<n>(x);
    return {scale, false, ue8m0_multiplier(scale) * format.element_scale};
  }
  if (!in_order_of_quartet2(format))
    return {scale, false, nvfp4_multiplier(scale, nvfp4_tensor_scale(tensor_amax))};
  const float tensor_step = quartet2_tensor_step(tensor_amax, format);
  const float step = e4m3_decode(scale) * tensor_step, four_step = e4m3_decode(four) * tensor_step;
  const bool better = format.four_over_six && four_is_better<n>(x, step, four_step);
  return {better ? four : scale, true, better ? four_step : step};
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
