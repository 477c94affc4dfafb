// A block of an FP4 copy in one thread: from elements to scale and codes, bit for bit as in numerics/fp4.h.
//
// fp4.h divides, and sums in FP64. Nearly every block gets the same bits for a third of the instructions:
//   e2m1      FP32's adder rounds a magnitude to the step of its binade, and its low bits count the steps
//   x / step  x has BF16's 8 bits, so one Newton step after a rounded reciprocal rounds like a division
//   sums      are in FP32; if rounding could change the following decision, the block takes the slow path
// The slow path is fp4.h's. Blocks that are not finite, or too small for the arithmetic above, take it as
// well.
#pragma once

#include "kernels/cuda/quantize/hadamard.cuh"
#include "kernels/numerics/fp4.h"

namespace precbench::cuda {

/// Kinds of scales, known at compile time; for Quartet II the two that its recipe uses, and all others.
enum class Scheme { nvfp4, four_over_six, eden, quartet2, mxfp4 };

constexpr bool of_quartet2(Scheme scheme) { return scheme != Scheme::nvfp4 && scheme != Scheme::mxfp4; }

// ---- e2m1

/// A magnitude rounded to e2m1. Not for NaN; saturates at 6.
struct E2m1Magnitude {
  float value;
  std::uint32_t code;

  /// Rounds to nearest even.
  __device__ explicit E2m1Magnitude(float x) {
    const Binade binade(x);
    const float sum = binade.clamped + binade.steps;
    *this = {binade, sum};
  }
  /// Rounds up with a probability equal to the discarded fraction, truncated to 8 bits; `random`: 8 bits. The
  /// addend stays below one step, and neither sum rounds up.
  __device__ E2m1Magnitude(float x, std::uint32_t random) {
    const Binade binade(x);
    const float raised = __fmaf_rz(static_cast<float>(random), binade.steps * 0x1p-31f, binade.clamped);
    *this = {binade, __fadd_rz(raised, binade.steps)};
  }

 private:
  struct Binade {
    float clamped;
    std::uint32_t number;  // FP32 exponent; that of 1 for smaller values
    float steps;           // 2^23 steps of e2m1, whose unit is FP32's last bit there

    __device__ explicit Binade(float x) {
      clamped = fminf(x, kE2m1Max);
      number = max(__float_as_uint(clamped), 0x3F800000u) >> 23;
      steps = __uint_as_float((number + 22) << 23);
    }
  };

  __device__ E2m1Magnitude(const Binade& binade, float sum) {
    value = sum - binade.steps;
    code = __float_as_uint(sum) - __float_as_uint(binade.steps) + 2 * (binade.number - 127);
  }
};

/// Packs sixteen codes from magnitude codes and their elements' signs.
struct SixteenCodes {
  std::uint32_t words[2] = {};

  __device__ void put(int i, const E2m1Magnitude& x) { words[i / 8] += x.code << (4 * (i % 8)); }

  /// Bit 15 of a half is its sign, bit 3 of a nibble its code's.
  __device__ void put_signs(const Chunk& x) {
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const std::uint32_t(&pair)[4] = x.half[word].pair;
      const std::uint32_t first = __byte_perm(pair[0], pair[1], 0x7351),
                          last = __byte_perm(pair[2], pair[3], 0x7351);
      const std::uint32_t even = __byte_perm(first, last, 0x5410), odd = __byte_perm(first, last, 0x7632);
      words[word] |= (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
    }
  }
};

/// Returns x without signs.
__device__ inline Chunk magnitudes_of(Chunk x) {
#pragma unroll
  for (int p = 0; p < kChunk / 2; ++p) x.half[p / 4].pair[p % 4] &= kNoSigns;
  return x;
}

__device__ inline float element(const Chunk& x, int i) {
  const std::uint32_t pair = x.half[i / 8].pair[i / 2 % 4];
  return i % 2 ? high(pair) : low(pair);
}

/// Returns true if every element is 0 or at least 2^-60. Takes magnitudes.
__device__ inline bool none_is_tiny(const Chunk& x) {
  constexpr int kLeast = (127 - 60) << 7;
  // 0 becomes the largest signed half, and the others the smallest ones, in order.
  std::uint32_t least = 0x7FFF7FFFu;
#pragma unroll
  for (int p = 0; p < kChunk / 2; ++p) least = __vmins2(least, x.half[p / 4].pair[p % 4] + 0x7FFF7FFFu);
  return min(static_cast<std::int16_t>(least), static_cast<std::int16_t>(least >> 16)) >= kLeast - 1 - 0x8000;
}

// ---- Quartet II

/// Returns x / step rounded to nearest, for a BF16 magnitude x that is 0 or at least 2^-60, a step from 2^-70
/// to 2^50 and a quotient of at most 2^100; reciprocal = 1 / step, rounded to nearest. Tested exhaustively
/// over pairs of mantissas, also with 10 bits for x.
__device__ inline float quotient(float x, float step, float reciprocal) {
  const float near = x * reciprocal;
  return __fmaf_rn(__fmaf_rn(-near, step, x), reciprocal, near);
}

/// Values shared by all blocks of a tensor.
struct Quartet2Tensor {
  float step, largest, of_largest;  ///< of_largest = 1 / largest
  bool plain;                       ///< the fast path may be tried

  __device__ Quartet2Tensor(const QuantFormat& format, float amax) {
    step = quartet2_tensor_step(amax, format);
    largest = kE2m1Max * format.element_scale;
    of_largest = __frcp_rn(largest);
    plain = step >= 0x1p-60f && step <= 0x1p40f && largest >= 0x1p-3f && largest <= 0x1p6f;
  }

  /// quartet2_block_scale of a BF16 amax, or of 1.5 times it, that is 0 or at least 2^-60.
  __device__ std::uint8_t block_scale(float amax) const {
    const std::uint32_t code = fp8x4(quotient(amax, largest, of_largest) / step, 0, 0, 0, DType::e4m3);
    constexpr std::uint32_t kOne = 0x38;
    return static_cast<std::uint8_t>(code == 0 ? kOne : code);
  }
};

/// A block as stored.
struct MadeBlock {
  std::uint8_t scale;
  SixteenCodes codes;  ///< without signs
};

/// FP32 sums of 16 positive terms are within 2^-20 of the exact ones.
inline constexpr float kSumMargin = 0x1p-18f;

/// x: magnitudes. Calls take(x, x / step, its e2m1 value) for every element.
template <class Take>
__device__ inline SixteenCodes cast_over(const Chunk& x, float step, Take&& take) {
  const float reciprocal = __frcp_rn(step);
  SixteenCodes codes;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float magnitude = element(x, i), scaled = quotient(magnitude, step, reciprocal);
    const E2m1Magnitude rounded(scaled);
    codes.put(i, rounded);
    take(magnitude, scaled, rounded.value);
  }
  return codes;
}

__device__ inline MadeBlock cast_with_scale(float& errors, const Chunk& x, std::uint8_t scale,
                                            const Quartet2Tensor& tensor) {
  const float step = e4m3_decode(scale) * tensor.step;
  errors = 0;
  return {scale, cast_over(x, step, [&](float magnitude, float, float value) {
            const float error = __fmaf_rn(value, step, -magnitude);
            errors = __fmaf_rn(error, error, errors);
          })};
}

/// Fast path of four_over_six: returns false if both scales are about equally good.
__device__ inline bool cast_four_over_six(MadeBlock& made, const Chunk& x, float amax,
                                          const Quartet2Tensor& tensor) {
  float errors, four_errors;
  made = cast_with_scale(errors, x, tensor.block_scale(amax), tensor);
  const MadeBlock four = cast_with_scale(four_errors, x, tensor.block_scale(1.5f * amax), tensor);
  if (four_errors < errors) made = four;
  // Squares below FP32's range lose no more than the second term.
  return fabsf(four_errors - errors) > __fmaf_rn(kSumMargin, four_errors + errors, 0x1p-100f);
}

/// Fast path of EDEN for one block: returns false if the corrected scale is too close to a point where the
/// draw would round it differently.
__device__ inline bool cast_eden(MadeBlock& made, const Chunk& x, float amax, const Quartet2Tensor& tensor,
                                 std::uint32_t random) {
  const float scale = e4m3_decode(tensor.block_scale(amax));
  float squares = 0, products = 0;
  made.codes = cast_over(x, scale * tensor.step, [&](float, float scaled, float value) {
    squares = __fmaf_rn(scaled, scaled, squares);
    products = __fmaf_rn(scaled, value, products);
  });
  const float corrected = scale * __fdividef(squares, products);
  made.scale = e4m3_encode_stochastic(corrected * (1 - 2 * kSumMargin), random);
  return made.scale == e4m3_encode_stochastic(corrected * (1 + 2 * kSumMargin), random) &&
         products > 0x1p-20f;
}

}  // namespace precbench::cuda
