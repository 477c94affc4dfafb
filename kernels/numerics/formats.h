// Number formats, bit for bit: e4m3, e5m2, e2m1 (OCP FP8 and MX), related formats without hardware support
// (e4m2, e4m1, e5m1, e5m3, e4m4, e3m4, e3m3), bf16, and their scales. Host and device share this header, so
// the CPU device and the CUDA kernels cannot disagree; a kernel may use the hardware's conversions instead,
// which give the same bytes.
//
// A cast clamps to +-max, then rounds to nearest even. NaN stays NaN with the hardware's canonical code and
// no sign. Everything is 32-bit integer arithmetic without branches or tables: loops over it vectorize (AVX2:
// over 1e9 elements/s per core). FP32 subnormals must not be flushed (no -ffast-math, no -ftz): scales of
// tiny blocks use them.
//
// Non-finite rule: an Inf or NaN anywhere in the scope of a scale makes the whole scope NaN, never silently
// finite:
//   amax NaN -> scale NaN -> every code NaN;
//   amax Inf -> scale 0, so Inf * 0 = NaN; the finite values become 0, but their stored scale is 1/0 = Inf
//               and 0 * Inf = NaN where they are dequantized;
//   ue8m0    -> b = 0xFF, whose value and multiplier are both NaN.
// It holds only if the amax propagates NaN, which fmax does not: use abs_bits.
#pragma once

#include <cstdint>

#include "kernels/numerics/recipe.h"
#include "kernels/numerics/tensor.h"

#if defined(__CUDACC__)
#define PRECBENCH_HD __host__ __device__
#else
#define PRECBENCH_HD
#endif

namespace precbench {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE5m2Max = 57344.0f;
inline constexpr float kE2m1Max = 6.0f;

/// Returns the largest finite value of a quantized element format, `dropped_bits` narrower than dtype; 0 for
/// other dtypes. With three or four exponent bits only the all-ones code is NaN: e4m2 ends at 1.5 * 2^8, e4m1
/// at 2^8, e4m4 at 1.875 * 2^8, e3m4 at 1.875 * 2^4. With five exponent bits the last binade is Inf and NaN,
/// as in e5m2.
PRECBENCH_HD constexpr float format_max(DType dtype, int dropped_bits = 0) {
  return dtype == DType::e4m3   ? (dropped_bits == 0   ? kE4m3Max
                                   : dropped_bits == 1 ? 384.0f
                                                       : 256.0f)
         : dtype == DType::e5m2 ? (dropped_bits == 0 ? kE5m2Max : 49152.0f)
         : dtype == DType::e2m1 ? kE2m1Max
         : dtype == DType::e5m3 ? 61440.0f
         : dtype == DType::e4m4 ? 480.0f
         : dtype == DType::e3m4 ? 30.0f
         : dtype == DType::e3m3 ? 28.0f
                                : 0.0f;
}

/// Returns the number of mantissa bits of a quantized element format.
PRECBENCH_HD constexpr int mantissa_bits_of(DType dtype, int dropped_bits = 0) {
  const int all = dtype == DType::e3m4 || dtype == DType::e4m4 ? 4
                  : dtype == DType::e5m2                       ? 2
                  : dtype == DType::e2m1                       ? 1
                                                               : 3;
  return all - dropped_bits;
}

/// Returns the exponent of the smallest normal value of a quantized element format: 1 minus the bias.
PRECBENCH_HD constexpr int least_exponent_of(DType dtype) {
  return dtype == DType::e4m3 || dtype == DType::e4m4   ? -6
         : dtype == DType::e3m4 || dtype == DType::e3m3 ? -2
         : dtype == DType::e2m1                         ? 0
                                                        : -14;
}

PRECBENCH_HD constexpr std::uint32_t float_to_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
PRECBENCH_HD constexpr float bits_to_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// Returns the bits of |x| as a signed integer. Their integer maximum is the amax with Inf above all numbers
/// and NaN above Inf, so it propagates both, vectorizes, and is order-independent (also as an atomicMax).
PRECBENCH_HD constexpr std::int32_t abs_bits(float x) {
  return static_cast<std::int32_t>(float_to_bits(x) & 0x7FFFFFFFu);
}

/// Returns the format's largest value in half steps of its last binade. A cast that gives this value with an
/// error of more than one half step has clipped instead of rounded.
PRECBENCH_HD constexpr float half_steps_of_max(DType dtype, int dropped_bits = 0) {
  const std::uint32_t mantissa = float_to_bits(format_max(dtype, dropped_bits)) & 0x007FFFFFu;
  return bits_to_float(mantissa | 0x3F800000u) *
         static_cast<float>(2 << mantissa_bits_of(dtype, dropped_bits));
}

namespace detail {

inline constexpr std::int32_t kInfBits = 0x7F800000;
inline constexpr std::uint32_t kNanBits = 0x7FC00000;

/// Returns condition ? a : b by arithmetic. GCC compiles a conditional expression with floating-point work on
/// one side to a branch, and then does not vectorize the loop around it.
PRECBENCH_HD constexpr std::uint32_t select(bool condition, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

/// Returns the code (sign, exponent, mantissa from the top) of `x`. Normal results round in the integer
/// domain: half an ulp minus one, plus the lsb, then truncate. Subnormal results are rounded by the FP32
/// adder: adding 2^23 of their ulps leaves the rounded count of ulps in the low mantissa bits.
template <int kExponentBits, int kMantissaBits, int kBias>
PRECBENCH_HD constexpr std::uint8_t encode_minifloat(float x, float max, std::uint32_t nan_code) {
  constexpr int kShift = 23 - kMantissaBits;
  constexpr std::int32_t kMinNormal = (128 - kBias) << 23;
  constexpr std::int32_t kMagic = (128 - kBias + kShift) << 23;
  constexpr std::int32_t kRebias = (127 - kBias) << kMantissaBits;
  const std::int32_t magnitude = abs_bits(x);
  const std::int32_t clamped = magnitude < abs_bits(max) ? magnitude : abs_bits(max);
  const std::int32_t lsb = (clamped >> kShift) & 1;
  const std::int32_t normal = ((clamped + ((1 << (kShift - 1)) - 1) + lsb) >> kShift) - kRebias;
  const std::int32_t subnormal = abs_bits(bits_to_float(clamped) + bits_to_float(kMagic)) - kMagic;
  const std::uint32_t sign = (float_to_bits(x) >> 31) << (kExponentBits + kMantissaBits);
  const std::uint32_t code = select(clamped < kMinNormal, subnormal, normal) | sign;
  return static_cast<std::uint8_t>(select(magnitude > kInfBits, nan_code, code));
}

/// Returns the FP32 bits of a finite code's value. Subnormals go through an integer conversion, not through
/// FP32 subnormals, which cost a microcode assist on some CPUs.
template <int kExponentBits, int kMantissaBits, int kBias>
PRECBENCH_HD constexpr std::uint32_t decode_minifloat(std::uint8_t code) {
  constexpr float kUlp = bits_to_float((128 - kBias - kMantissaBits) << 23);
  const std::int32_t magnitude = code & ((1 << (kExponentBits + kMantissaBits)) - 1);
  const std::int32_t normal = (magnitude << (23 - kMantissaBits)) + ((127 - kBias) << 23);
  const std::int32_t subnormal = abs_bits(static_cast<float>(magnitude) * kUlp);
  const std::uint32_t sign = static_cast<std::uint32_t>(code >> (kExponentBits + kMantissaBits)) << 31;
  return select(magnitude < (1 << kMantissaBits), subnormal, normal) | sign;
}

}  // namespace detail

// ---- elements ----

/// Finite and infinite inputs saturate at +-448; NaN gives 0x7F.
PRECBENCH_HD constexpr std::uint8_t e4m3_encode(float x) {
  return detail::encode_minifloat<4, 3, 7>(x, kE4m3Max, 0x7F);
}

/// 0x7F and 0xFF are NaN; there is no infinity.
PRECBENCH_HD constexpr float e4m3_decode(std::uint8_t code) {
  const std::uint32_t bits = detail::decode_minifloat<4, 3, 7>(code);
  return bits_to_float(detail::select((code & 0x7F) == 0x7F, detail::kNanBits, bits));
}

/// Finite and infinite inputs saturate at +-57344 (the infinity codes are never produced); NaN gives 0x7F.
PRECBENCH_HD constexpr std::uint8_t e5m2_encode(float x) {
  return detail::encode_minifloat<5, 2, 15>(x, kE5m2Max, 0x7F);
}

/// 0x7C and 0xFC are +-infinity, the codes above them NaN.
PRECBENCH_HD constexpr float e5m2_decode(std::uint8_t code) {
  // Inf and NaN codes have the top exponent; it only has to become FP32's top exponent.
  const std::uint32_t special = (code & 0x7F) >= 0x7C ? 0x7F800000u : 0u;
  return bits_to_float(detail::decode_minifloat<5, 2, 15>(code) | special);
}

/// Constants of rounding to the values of dtype with `dropped_bits` fewer mantissa bits. Computed once for many values.
struct NarrowerValues {
  PRECBENCH_HD constexpr NarrowerValues(DType dtype, int dropped_bits)
      : max(abs_bits(format_max(dtype, dropped_bits))),
        least((127 + least_exponent_of(dtype)) << 23),
        steps((23 - mantissa_bits_of(dtype, dropped_bits)) << 23) {}

  std::int32_t max;    ///< FP32 bits of the largest value
  std::int32_t least;  ///< FP32 bits of the smallest normal value
  std::int32_t steps;  ///< added to the FP32 bits of a binade: 2^23 steps of it
};

/// Rounds `x` to the nearest of the values: ties to even, saturating, NaN stays. The FP32 adder rounds: 2^23 steps of
/// x's binade leave the count of steps in the low mantissa bits.
PRECBENCH_HD constexpr float round_to_narrower(float x, const NarrowerValues& to) {
  const std::int32_t magnitude = abs_bits(x);
  const std::int32_t clamped = magnitude < to.max ? magnitude : to.max;
  const std::int32_t binade = clamped & detail::kInfBits;
  const float steps = bits_to_float((binade < to.least ? to.least : binade) + to.steps);
  const float rounded = (bits_to_float(clamped) + steps) - steps;
  const std::uint32_t sign = float_to_bits(x) & 0x80000000u;
  return bits_to_float(
      detail::select(magnitude > detail::kInfBits, float_to_bits(x), float_to_bits(rounded) | sign));
}

/// As above, for one value. The result is a value of dtype, so encoding it does not round again.
PRECBENCH_HD constexpr float round_to_narrower(float x, DType dtype, int dropped_bits = 0) {
  return round_to_narrower(x, NarrowerValues(dtype, dropped_bits));
}

/// The low four bits hold the code. The format has no NaN: NaN gives +6 as in hardware, so only the scale can
/// carry it.
PRECBENCH_HD constexpr std::uint8_t e2m1_encode(float x) {
  return detail::encode_minifloat<2, 1, 1>(x, kE2m1Max, 0x7);
}

/// Reads the low four bits only.
PRECBENCH_HD constexpr float e2m1_decode(std::uint8_t code) {
  return bits_to_float(detail::decode_minifloat<2, 1, 1>(code));
}

/// Round to nearest even; values above the largest bf16 become infinity; NaN gives 0x7FFF.
PRECBENCH_HD constexpr std::uint16_t bf16_encode(float x) {
  const std::uint32_t bits = float_to_bits(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(detail::select(abs_bits(x) > detail::kInfBits, 0x7FFF, rounded));
}

/// Rounds away from zero with a probability equal to the discarded fraction: exact in expectation. `random`
/// supplies 16 uniform bits (its low half), a new value for every element and step. Representable values
/// never change.
PRECBENCH_HD constexpr std::uint16_t bf16_encode_stochastic(float x, std::uint32_t random) {
  const std::uint32_t rounded = (float_to_bits(x) + (random & 0xFFFFu)) >> 16;
  return static_cast<std::uint16_t>(detail::select(abs_bits(x) > detail::kInfBits, 0x7FFF, rounded));
}

PRECBENCH_HD constexpr float bf16_decode(std::uint16_t code) {
  return bits_to_float(static_cast<std::uint32_t>(code) << 16);
}

/// Returns an element of a format that is held in BF16 (tensor.h) as BF16 bits; NaN gives 0x7FFF.
PRECBENCH_HD constexpr std::uint16_t encode_in_bf16(float x, DType dtype) {
  return bf16_encode(round_to_narrower(x, dtype));
}

// ---- FP32 scales ----

/// Returns the multiplying scale fp32(max / max(fp64(amax), 1e-12)); the GEMM gets 1 / scale. The lower bound
/// on amax keeps the scale finite where max / amax would overflow FP32 (448 does below amax = 1.317e-36) and
/// makes an all-zero scope's data 0. amax NaN gives NaN, amax Inf gives 0: see the non-finite rule above.
PRECBENCH_HD constexpr float fp32_scale(float amax, float max) {
  constexpr double kFloor = 1e-12;
  const double divisor = static_cast<double>(amax) < kFloor ? kFloor : static_cast<double>(amax);
  return static_cast<float>(static_cast<double>(max) / divisor);
}

/// Rounds a multiplying scale down to a power of two, so that the scaled amax lands in (max/2, max]. 0 and
/// NaN stay: truncating NaN's mantissa would make it Inf, and its reciprocal a finite 0.
PRECBENCH_HD constexpr float pow2_round_down(float scale) {
  return abs_bits(scale) > detail::kInfBits ? scale : bits_to_float(float_to_bits(scale) & 0xFF800000u);
}

/// Returns the multiplying FP32 scale of a scope: fp32_scale, rounded down to a power of two for f32_pow2.
PRECBENCH_HD constexpr float multiplying_scale(float amax, DType format, ScaleType type,
                                               int dropped_bits = 0) {
  const float scale = fp32_scale(amax, format_max(format, dropped_bits));
  return type == ScaleType::f32_pow2 ? pow2_round_down(scale) : scale;
}

/// Returns the multiplying scale of delayed scaling, max * 2^-margin / amax, for an amax known before the
/// tensor. Finite and positive for every finite amax; NaN gives NaN. Like TransformerEngine's it has no lower
/// bound on amax, unlike fp32_scale. For f32_pow2 (MS-AMP) it is rounded down to a power of two.
PRECBENCH_HD constexpr float delayed_scale(float amax, float max, int margin,
                                           ScaleType type = ScaleType::f32) {
  const float top = bits_to_float(float_to_bits(max) - (static_cast<std::uint32_t>(margin) << 23));
  const float ratio = top / amax;
  const float scale = abs_bits(ratio) == detail::kInfBits ? bits_to_float(0x7F7FFFFFu) : ratio;
  return type == ScaleType::f32_pow2 ? pow2_round_down(scale) : scale;
}

// ---- ue8m0 scales ----

/// Returns the value 2^(b-127) that dequantizes a block; b = 0 is the FP32 subnormal 2^-127, b = 0xFF is NaN.
PRECBENCH_HD constexpr float ue8m0_decode(std::uint8_t b) {
  const std::uint32_t power = b == 0 ? 0x00400000u : static_cast<std::uint32_t>(b) << 23;
  return bits_to_float(b == 0xFF ? 0x7FC00000u : power);
}

/// Returns the reciprocal 2^(127-b) that multiplies the elements before the cast; b = 254 gives the subnormal
/// 2^-127.
PRECBENCH_HD constexpr float ue8m0_multiplier(std::uint8_t b) {
  const std::uint32_t power = b >= 254 ? 0x00400000u : static_cast<std::uint32_t>(254 - b) << 23;
  return bits_to_float(b == 0xFF ? 0x7FC00000u : power);
}

/// Returns the least power of two >= d as a byte (like the hardware's cvt.rp without satfinite): the biased
/// exponent, plus one if mantissa bits are set. In the subnormal range 2^-127 is the mantissa 0x400000, so
/// the increment starts above it. d > 2^127, Inf and NaN give 0xFF.
PRECBENCH_HD constexpr std::uint8_t ue8m0_round_up(float d) {
  const std::int32_t bits = abs_bits(d);
  const std::int32_t mantissa = bits & 0x007FFFFF;
  const std::int32_t exponent = bits >> 23;
  const bool increment = exponent == 0 ? mantissa > 0x00400000 : mantissa != 0;
  const std::int32_t b = exponent + (increment ? 1 : 0);
  return static_cast<std::uint8_t>(b < 0xFF ? b : 0xFF);
}

/// Returns the scale byte of a block with largest magnitude `amax`, for elements up to `max` with this many
/// mantissa bits. Non-finite amax gives 0xFF, zero gives 0.
///   rceil  round_up(amax * fp32(1/max)): scaled amax in (max/2, max], never saturates (NVIDIA's recipe)
///   floor  floor(log2 amax) - emax (OCP MX v1.0, section 6.3): scaled values above max saturate
///   ceil   ceil(log2 amax) - emax: scaled amax in (2^(emax-1), 2^emax]
///   even   floor, after rounding amax half up to the element's mantissa width
/// emax is the exponent of the largest power of two up to `max`: 8 for e4m3 and e4m4, 15 for e5m2, 2 for e2m1,
/// 4 for e3m4. The last three clamp at 2^-127 and give 0xFF above 2^127.
PRECBENCH_HD constexpr std::uint8_t ue8m0_from_range(float amax, float max, int mantissa_bits,
                                                     ScaleRounding rounding) {
  const std::int32_t bits = abs_bits(amax);
  if (bits >= detail::kInfBits) return 0xFF;
  if (rounding == ScaleRounding::rceil) return ue8m0_round_up(amax * (1.0f / max));
  const std::int32_t emax = (abs_bits(max) >> 23) - 127;
  const std::int32_t half_ulp = rounding == ScaleRounding::even ? 1 << (22 - mantissa_bits) : 0;
  const std::int32_t round_up = rounding == ScaleRounding::ceil && (bits & 0x007FFFFF) != 0 ? 1 : 0;
  const std::int32_t b = ((bits + half_ulp) >> 23) + round_up - emax;
  return static_cast<std::uint8_t>(b <= 0 ? 0 : b < 0xFF ? b : 0xFF);
}

/// The same for the elements of a quantized format.
PRECBENCH_HD constexpr std::uint8_t ue8m0_from_amax(float amax, DType format, ScaleRounding rounding,
                                                    int dropped_bits = 0) {
  return ue8m0_from_range(amax, format_max(format, dropped_bits), mantissa_bits_of(format, dropped_bits),
                          rounding);
}

// ---- random bits ----

/// Returns 32 uniform bits for position `index` of the stream `seed`: the SplitMix64 sequence (Steele, Lea,
/// Flood, OOPSLA 2014) addressed by counter, from a start that is itself mixed so that neighbouring seeds do
/// not overlap. It has no state, so it is the same on every device and for every split of the work.
PRECBENCH_HD constexpr std::uint32_t random_bits(std::uint64_t seed, std::uint64_t index) {
  constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15u;
  std::uint64_t z = seed + kGamma;
  for (int round = 0; round < 2; ++round) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    if (round == 0) z += (index + 1) * kGamma;
  }
  return static_cast<std::uint32_t>(z >> 32);
}

}  // namespace precbench
