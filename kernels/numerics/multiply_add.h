// Multiply-add with defined rounding. The ops are compiled with -ffp-contract=off, because every compiler has its own
// rules for which products it fuses with which sums. Where an FMA is wanted, the source calls multiply_add().
#pragma once

#include "kernels/numerics/formats.h"

namespace precbench {

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define PRECBENCH_HAS_FMA
#endif

/// Returns x * y + z, rounded once if the target has FMA instructions. Without them the product is rounded, too,
/// because libm's fma() is far slower than a product and a sum. In device code nvcc emits an FMA.
template <class T>
PRECBENCH_HD constexpr T multiply_add(T x, T y, T z) {
#if defined(PRECBENCH_HAS_FMA) && !defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == sizeof(float))
    return __builtin_fmaf(x, y, z);
  else
    return __builtin_fma(x, y, z);
#else
  return x * y + z;
#endif
}

}  // namespace precbench
