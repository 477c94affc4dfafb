// The multiply-add of sums whose bits are defined. The ops are compiled with -ffp-contract=off, since every compiler has
// its own rules for which products it fuses with which sums; where a sum shall be fused, its source says so.
#pragma once

#include "kernels/numerics/formats.h"

namespace precbench {

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define PRECBENCH_HAS_FMA
#endif

/// Returns x * y + z, rounded once if the target has FMA instructions: libm's fma() of other targets is far slower than
/// a product and a sum. In device code nvcc fuses, as it does everywhere.
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
