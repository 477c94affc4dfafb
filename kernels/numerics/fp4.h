// FP4 formats other than TransformerEngine's NVFP4 (nvfp4.h), bit for bit: Hadamard transforms of any length,
// MXFP4, Quartet's scales from standard deviations, Quartet II's two-candidate scales and EDEN-corrected
// ones. Sums are over exact products in FP64 in a fixed order, so that FMAs change nothing and every device
// gets the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/numerics/nvfp4.h"

namespace precbench {

/// Longest transform.
inline constexpr int kLongestTransform = 128;

// ---- Hadamard transforms

/// Returns the normalization of a Hadamard sum of `length` elements, 1 / sqrt(length).
PRECBENCH_HD constexpr float hadamard_factor(int length) {
  return length == 16 ? 0.25f : length == 32 ? 0x1.6a09e6p-3f : length == 64 ? 0.125f : 0x1.6a09e6p-4f;
}

/// Bit mask of signs: a set bit i negates element i of every transform.
struct SignBits {
  std::uint32_t words[kLongestTransform / 32];

  /// Applies the signs to n elements of transforms of `length`; the inner loop runs over the bits of one
  /// word.
  template <int length>
  PRECBENCH_HD constexpr void apply_to(float* x, std::int64_t n) const {
    constexpr int kWord = 32, kRun = length < kWord ? length : kWord;
    for (std::int64_t first = 0; first < n; first += kRun) {
      const std::uint32_t word = words[first % length / kWord];
      for (int i = 0; i < kRun; ++i)
        x[first + i] = bits_to_float(float_to_bits(x[first + i]) ^ (word >> i & 1u) << 31);
    }
  }
};

/// Returns the signs of a transform. `stream` selects among random ones within a step, whose random word is
/// `word`.
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

/// Sums and differences of elements `kHalf` apart, a compile-time constant so that the loop vectorizes.
template <int kHalf>
PRECBENCH_HD constexpr void butterflies(float* x, std::int64_t length) {
  for (std::int64_t first = 0; first < length; first += 2 * kHalf)
    for (std::int64_t i = first; i < first + kHalf; ++i) {
      const float a = x[i], b = x[i + kHalf];
      x[i] = a + b;
      x[i + kHalf] = a - b;
    }
}

}  // namespace detail

/// x = x H for every `length` of n elements, H Sylvester's. Each level runs over all n: loops over one
/// transform are so short that compilers unroll instead of vectorizing them.
template <int length>
PRECBENCH_HD constexpr void hadamard_sums(float* x, std::int64_t n = length) {
  detail::butterflies<1>(x, n);
  detail::butterflies<2>(x, n);
  detail::butterflies<4>(x, n);
  detail::butterflies<8>(x, n);
  if constexpr (length > 16) detail::butterflies<16>(x, n);
  if constexpr (length > 32) detail::butterflies<32>(x, n);
  if constexpr (length > 64) detail::butterflies<64>(x, n);
}

/// x = (x o signs) H / sqrt(length) for every `length` of n elements, rounded to BF16. Orthogonal except for
/// the rounding: applied to both operands along their contraction it leaves the GEMM result unchanged.
template <int length>
PRECBENCH_HD constexpr void hadamard_transform(float* x, const SignBits& signs, std::int64_t n = length) {
  signs.apply_to<length>(x, n);
  hadamard_sums<length>(x, n);
  const float factor = hadamard_factor(length);
  for (std::int64_t i = 0; i < n; ++i) x[i] = bf16_decode(bf16_encode(x[i] * factor));
}

/// Calls body(std::integral_constant<int, length>()), so that the length is known at compile time.
template <class Body>
void with_length(int length, Body&& body) {
  if (length == 16) return body(std::integral_constant<int, 16>());
  if (length == 32) return body(std::integral_constant<int, 32>());
  if (length == 64) return body(std::integral_constant<int, 64>());
  body(std::integral_constant<int, 128>());
}

// ---- block scales

/// Returns floor(log2(x)) as a ue8m0 byte, for x > 0.
PRECBENCH_HD constexpr std::uint8_t ue8m0_round_down(float x) {
  const std::int32_t bits = abs_bits(x);
  return bits >= detail::kInfBits ? 0xFF : static_cast<std::uint8_t>(bits >> 23);
}

/// Target standard deviation of a block over 6: it minimizes the squared error of normal values in e2m1.
inline constexpr float kQuestDeviation = 2.92247856f / kE2m1Max;

/// Returns Quartet's scale of a block: the power of two at or below kQuestDeviation times its standard
/// deviation. Larger elements saturate.
template <int n>
PRECBENCH_HD inline std::uint8_t quest_scale(const float* x) {
  double squares = 0, sum = 0;
  for (int i = 0; i < n; ++i) {
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    sum += static_cast<double>(x[i]);
  }
  const double mean = static_cast<double>(static_cast<float>(sum / n));
  const double variance = squares / n - mean * mean;
  if (!(variance - variance == 0)) return 0xFF;  // non-finite
  const float deviation = variance >= 0 ? static_cast<float>(std::sqrt(variance)) : 1.0f;
  return ue8m0_round_down(
      static_cast<float>(static_cast<double>(kQuestDeviation) * static_cast<double>(deviation) + 1e-8));
}

/// Returns true if the cast of x clips under this scale.
PRECBENCH_HD constexpr bool fp4_clips(float x, std::uint8_t scale) {
  const float scaled = x * ue8m0_multiplier(scale);
  return scaled <= -kE2m1Max || scaled >= kE2m1Max;
}

/// Returns Quartet II's FP32 scale of a tensor, which multiplies its block scales.
PRECBENCH_HD constexpr float quartet2_tensor_step(float amax, const QuantFormat& format) {
  if (amax == 0.0f) return 1.0f;
  return amax / format.global_scale / (kE2m1Max * format.element_scale);
}

/// Returns a block's e4m3 scale under tensor_step, mapping its largest element to `largest`; 1 where it would
/// be 0.
PRECBENCH_HD constexpr std::uint8_t quartet2_block_scale(float block_amax, float tensor_step, float largest) {
  const std::uint32_t code = e4m3_encode(block_amax / largest / tensor_step);
  constexpr std::uint32_t kOne = 0x38;
  return static_cast<std::uint8_t>(detail::select(code == 0, kOne, code));
}

/// e2m1_decode(e2m1_encode(x)) without the code in between; NaN stays.
PRECBENCH_HD constexpr float e2m1_value(float x) { return round_to_narrower(x, DType::e2m1); }

/// sums[b] = dot product of block b's n elements of x and y, in order. The loop interleaves blocks: each has
/// its own chain of additions, and the chains run in parallel.
template <int n, int blocks>
PRECBENCH_HD constexpr void sum_products(double (&sums)[blocks], const float* x, const float* y) {
  double products[blocks * n] = {};
  for (int i = 0; i < blocks * n; ++i) products[i] = static_cast<double>(x[i]) * static_cast<double>(y[i]);
  for (int b = 0; b < blocks; ++b) sums[b] = 0;
  for (int i = 0; i < n; ++i)
    for (int b = 0; b < blocks; ++b) sums[b] += products[b * n + i];
}

/// sums[b] = squared error of block b's cast to e2m1 times steps[b]. Each element's error is rounded once,
/// since code times step needs more bits than a float has.
template <int n, int blocks>
PRECBENCH_HD inline void sum_squared_errors(double (&sums)[blocks], const float* x,
                                            const float (&steps)[blocks]) {
  float errors[blocks * n];
  for (int b = 0; b < blocks; ++b)
    for (int i = b * n; i < (b + 1) * n; ++i)
      errors[i] = std::fma(e2m1_value(x[i] / steps[b]), steps[b], -x[i]);
  sum_products<n>(sums, errors, errors);
}

/// Returns the e4m3 code of x >= 0, rounded up with a probability equal to the discarded fraction (decided by
/// 32 random bits); saturates at 448. NaN gives NaN.
PRECBENCH_HD constexpr std::uint8_t e4m3_encode_stochastic(float x, std::uint32_t random) {
  constexpr int kShift = 23 - 3, kRebias = (127 - 7) << 3;
  const std::int32_t magnitude = abs_bits(x);
  const std::int32_t clamped = magnitude < abs_bits(kE4m3Max) ? magnitude : abs_bits(kE4m3Max);
  // The bits below the three mantissa bits carry if they exceed as many random bits.
  const std::int32_t carry = (1 << kShift) - 1 - static_cast<std::int32_t>(random >> (32 - kShift));
  const std::int32_t normal = ((clamped + carry) >> kShift) - kRebias;
  // Below 2^-6 the step is 2^-9, and the count of steps has an exact fraction.
  const float steps = bits_to_float(static_cast<std::uint32_t>(clamped)) * 0x1p9f;
  const std::int32_t whole = static_cast<std::int32_t>(steps);
  const double rest = static_cast<double>(steps - static_cast<float>(whole));
  const double draw = static_cast<double>(static_cast<std::int32_t>(random ^ 0x80000000u)) + 0x1p31;
  const std::int32_t subnormal = whole + (draw < rest * 0x1p32 ? 1 : 0);
  const std::uint32_t code = static_cast<std::uint32_t>(clamped < abs_bits(0x1p-6f) ? subnormal : normal);
  return static_cast<std::uint8_t>(detail::select(magnitude > detail::kInfBits, 0x7Fu, code));
}

/// Inputs of EDEN's correction: sums over some blocks' scaled elements.
struct EdenSums {
  double squares = 0;
  double products = 0;  ///< of elements and their codes

  PRECBENCH_HD constexpr void add(const EdenSums& other) {
    squares += other.squares;
    products += other.products;
  }
  /// Returns the factor f on the codes for which <x, f * codes> = <x, x> over the elements x.
  PRECBENCH_HD constexpr float correction() const {
    return products == 0 ? 1.0f : static_cast<float>(squares / products);
  }
};

/// Adds up the sums for blocks of n elements that are already divided by their steps.
template <int n, int blocks>
PRECBENCH_HD constexpr void eden_sums(EdenSums (&sums)[blocks], const float* scaled) {
  float codes[blocks * n] = {};
  for (int i = 0; i < blocks * n; ++i) codes[i] = e2m1_value(scaled[i]);
  double squares[blocks] = {}, products[blocks] = {};
  sum_products<n>(squares, scaled, scaled);
  sum_products<n>(products, scaled, codes);
  for (int b = 0; b < blocks; ++b) sums[b] = {squares[b], products[b]};
}

/// Returns a block's corrected e4m3 scale. `random`: 32 bits.
PRECBENCH_HD constexpr std::uint8_t eden_scale(std::uint8_t scale, float correction, std::uint32_t random) {
  return e4m3_encode_stochastic(e4m3_decode(scale) * correction, random);
}

// ---- one block

/// Conversion of a block's elements to codes, and the stored scale.
struct Fp4Block {
  std::uint8_t scale;  ///< e4m3 or ue8m0
  bool divide;         ///< true: elements are divided by `factor`, else multiplied
  float factor;

  PRECBENCH_HD constexpr float scaled(float x) const { return divide ? x / factor : x * factor; }
};

/// Returns true if a format uses Quartet II's order of operations rather than TransformerEngine's.
PRECBENCH_HD constexpr bool in_order_of_quartet2(const QuantFormat& format) {
  return format.global_scale != 448;
}

/// Computes the initial scales of blocks with these amaxes (of a square block's, if blocks are square) in a
/// tensor with the given amax; not for quest.
template <int blocks>
PRECBENCH_HD constexpr void fp4_scales_of_amax(std::uint8_t (&scales)[blocks], const QuantFormat& format,
                                               const float (&amax)[blocks], float tensor_amax) {
  if (format.scale == ScaleType::ue8m0) {
    for (int b = 0; b < blocks; ++b) scales[b] = ue8m0_from_amax(amax[b], DType::e2m1, format.scale_rounding);
  } else if (in_order_of_quartet2(format)) {
    const float tensor_step = quartet2_tensor_step(tensor_amax, format);
    const float largest = kE2m1Max * format.element_scale;
    for (int b = 0; b < blocks; ++b) scales[b] = quartet2_block_scale(amax[b], tensor_step, largest);
  } else {
    const float tensor_scale = nvfp4_tensor_scale(tensor_amax);
    for (int b = 0; b < blocks; ++b) scales[b] = nvfp4_block_scale(amax[b], tensor_scale);
  }
}

/// Chooses how blocks of n elements x are cast, given initial scales. With four_over_six, `fours` are the
/// alternative scales for 3/2 their amax. EDEN's scales are corrected afterwards (eden_scale).
template <int n, int blocks>
PRECBENCH_HD inline void fp4_blocks(Fp4Block (&made)[blocks], const QuantFormat& format, const float* x,
                                    const std::uint8_t (&scales)[blocks], const std::uint8_t (&fours)[blocks],
                                    float tensor_amax) {
  if (format.scale == ScaleType::ue8m0) {
    const bool quest = format.scale_rounding == ScaleRounding::quest;
    for (int b = 0; b < blocks; ++b) {
      const std::uint8_t scale = quest ? quest_scale<n>(x + b * n) : scales[b];
      made[b] = {scale, false, ue8m0_multiplier(scale) * format.element_scale};
    }
    return;
  }
  if (!in_order_of_quartet2(format)) {
    const float tensor_scale = nvfp4_tensor_scale(tensor_amax);
    for (int b = 0; b < blocks; ++b) made[b] = {scales[b], false, nvfp4_multiplier(scales[b], tensor_scale)};
    return;
  }
  const float tensor_step = quartet2_tensor_step(tensor_amax, format);
  float steps[blocks], four_steps[blocks];
  for (int b = 0; b < blocks; ++b) steps[b] = e4m3_decode(scales[b]) * tensor_step;
  for (int b = 0; b < blocks; ++b) four_steps[b] = e4m3_decode(fours[b]) * tensor_step;
  double sums[blocks] = {}, four_sums[blocks] = {};
  if (format.four_over_six) {
    sum_squared_errors<n>(sums, x, steps);
    sum_squared_errors<n>(four_sums, x, four_steps);
  }
  for (int b = 0; b < blocks; ++b) {
    const bool four = four_sums[b] < sums[b];
    made[b] = {four ? fours[b] : scales[b], true, four ? four_steps[b] : steps[b]};
  }
}

/// Returns the tensor's factor on code * scale.
PRECBENCH_HD constexpr float fp4_tensor_factor(const QuantFormat& format, float amax) {
  if (format.scale == ScaleType::ue8m0) return 1.0f / format.element_scale;
  return in_order_of_quartet2(format) ? quartet2_tensor_step(amax, format) : amax / kNvfp4Max;
}

/// Returns the factor of a GEMM of two FP4 tensors, its alpha. With one FP4 and one BF16 operand it is the
/// FP4 tensor's own factor.
PRECBENCH_HD constexpr float fp4_alpha(const QuantFormat& a, const QuantFormat& b, float amax_a,
                                       float amax_b) {
  if (b.dtype == DType::bf16) return fp4_tensor_factor(a, amax_a);
  if (a.dtype == DType::bf16) return fp4_tensor_factor(b, amax_b);
  const bool nvfp4 = a.scale == ScaleType::e4m3 && !in_order_of_quartet2(a) && b.scale == ScaleType::e4m3 &&
                     !in_order_of_quartet2(b);
  return nvfp4 ? nvfp4_alpha(amax_a, amax_b) : fp4_tensor_factor(a, amax_a) * fp4_tensor_factor(b, amax_b);
}

}  // namespace precbench
