// Reference quantization for tests, from the definitions of numerics: in FP64, by search and logarithms,
// where the device works on bits. Slow, and independent of formats.h except for the codes' values.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/numerics/formats.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::testing {

/// Parameters of the element format. With three and four exponent bits only the all-ones code is NaN, so the
/// last binade lacks its largest mantissa; with five, the last binade holds Inf and NaN, and the one before
/// it is complete.
inline int exponent_bits_of(const QuantFormat& format) { return element_name(format)[1] - '0'; }
inline int mantissa_bits_of(const QuantFormat& format) { return element_name(format)[3] - '0'; }
inline int bias_of(const QuantFormat& format) { return (1 << (exponent_bits_of(format) - 1)) - 1; }
inline int largest_exponent_of(const QuantFormat& format) {
  return bias_of(format) + (exponent_bits_of(format) < 5 ? 1 : 0);
}
inline double max_of(const QuantFormat& format) {
  const double missing = exponent_bits_of(format) < 5 ? 2.0 : 1.0;
  return std::ldexp(2 - std::ldexp(missing, -mantissa_bits_of(format)), largest_exponent_of(format));
}

/// Returns the nearest value of the format, ties to the even mantissa, saturating.
inline double cast_value(double x, const QuantFormat& format) {
  if (std::isnan(x)) return x;
  const int mantissa_bits = mantissa_bits_of(format), least_exponent = 1 - bias_of(format);
  const double max = max_of(format);
  if (std::fabs(x) >= max) return std::copysign(max, x);
  const int exponent = x == 0 ? least_exponent : std::max(least_exponent, std::ilogb(x));
  const double step = std::ldexp(1.0, exponent - mantissa_bits);
  return std::nearbyint(x / step) * step;  // cannot exceed max, a multiple of every step
}

/// The factor on an element before the cast, and the stored scale.
struct ReferenceScale {
  float multiply, dequantize;
};

inline ReferenceScale scale_of_scope(float amax, const QuantFormat& format) {
  const double max = max_of(format);
  if (format.scale != ScaleType::ue8m0) {
    float multiply = static_cast<float>(max / std::max(static_cast<double>(amax), 1e-12));
    if (format.scale == ScaleType::f32_pow2) multiply = std::ldexp(1.0f, std::ilogb(multiply));
    return {multiply, 1.0f / multiply};
  }
  // Exponents of the dequantizing power of two; the smallest is 2^-127.
  const int emax = largest_exponent_of(format), mantissa_bits = mantissa_bits_of(format);
  int exponent = -127;
  if (amax != 0) {
    const double target = static_cast<double>(amax * (1.0f / static_cast<float>(max)));
    switch (format.scale_rounding) {
      case ScaleRounding::rceil:
        while (std::ldexp(1.0, exponent) < target) ++exponent;
        break;
      case ScaleRounding::floor:
        exponent = std::ilogb(amax) - emax;
        break;
      case ScaleRounding::ceil:
        exponent = std::ilogb(amax) - emax + (std::ldexp(1.0, std::ilogb(amax)) < amax);
        break;
      default: {  // even: amax is first rounded half up to the elements' mantissa
        const double step = std::ldexp(1.0, std::ilogb(amax) - mantissa_bits);
        exponent = std::ilogb(std::floor(amax / step + 0.5) * step) - emax;
      }
    }
    exponent = std::max(exponent, -127);
  }
  return {static_cast<float>(std::ldexp(1.0, -exponent)), static_cast<float>(std::ldexp(1.0, exponent))};
}

struct ReferenceCopy {
  std::vector<float> scaled;      ///< of the element before the cast; NaN if its scope is not finite
  std::vector<double> cast;       ///< the quantized element, in the format's own units
  std::vector<float> dequantize;  ///< scale of the element
};

/// Returns the rowwise copy of a [rows, k] matrix.
inline ReferenceCopy quantize_reference(const std::vector<float>& x, std::int64_t rows, std::int64_t k,
                                        const QuantFormat& format) {
  const Granularity g = format.granularity;
  const std::int64_t tall = g == Granularity::tensor          ? rows
                            : g == Granularity::block_128x128 ? 128
                            : g == Granularity::block_32x32   ? 32
                                                              : 1;
  const std::int64_t wide = block_length(g) ? block_length(g) : k;
  ReferenceCopy copy{x, std::vector<double>(x.size()), x};
  for (std::int64_t r0 = 0; r0 < rows; r0 += tall)
    for (std::int64_t k0 = 0; k0 < k; k0 += wide) {
      float amax = 0;
      bool finite = true;
      const auto each = [&](auto&& body) {
        for (std::int64_t r = r0; r < std::min(rows, r0 + tall); ++r)
          for (std::int64_t i = k0; i < std::min(k, k0 + wide); ++i) body(r * k + i);
      };
      each([&](std::int64_t i) {
        amax = std::max(amax, std::fabs(x[i]));
        finite = finite && std::isfinite(x[i]);
      });
      const ReferenceScale scale =
          finite ? scale_of_scope(amax, format) : ReferenceScale{std::nanf(""), std::nanf("")};
      each([&](std::int64_t i) {
        copy.scaled[i] = x[i] * scale.multiply;
        copy.cast[i] = cast_value(copy.scaled[i], format);
        copy.dequantize[i] = scale.dequantize;
      });
    }
  return copy;
}

}  // namespace precbench::testing
