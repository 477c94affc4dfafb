// Soft-capped scores, cap tanh(score / cap), in the kernels of attention.
//
// tanh(x) is 1 - 2 / (1 + exp(2 x)), with an absolute error of at most 2^-21: the roundings of exp2 (2^-22), of the sum
// (2^-24) and of the reciprocal (2^-23) are relative to a quotient of at most 2. It gives a probability a relative error of
// cap times that: 2^-15 at a cap of 50, where BF16 rounds to 2^-9. The instruction tanh.approx, with an error of 2^-11 of
// its value, would give a score of 25 one of up to 2^-6.
#pragma once

#include "kernels/cuda/vector.cuh"

namespace precbench::cuda {

constexpr double kSoftcapLog2E = 1.4426950408889634;

/// Returns what tanh_of() takes: 2 log2(e) scale / cap.
inline float tanh_exponent(double scale, double cap) {
  return static_cast<float>(2 * kSoftcapLog2E * scale / cap);
}

/// Returns 1 / x, within one unit of the last place; 0 for infinity.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Returns tanh(scale qk / cap).
__device__ __forceinline__ float tanh_of(float qk, float exponent) {
  return fmaf(-2.0f, reciprocal_approx(1.0f + exp2_approx(qk * exponent)), 1.0f);
}

/// Returns the derivative of tanh from its value.
__device__ __forceinline__ float tanh_slope(float tanh) { return fmaf(-tanh, tanh, 1.0f); }

/// Returns tanh_slope() of a score from its probability p = 2^(tanh cap_log2 - lse), which saves the register of the slope; 0
/// where p is 0. `lse`: for powers of two.
__device__ __forceinline__ float tanh_slope_of_probability(float p, float lse, float inverse_cap_log2) {
  float log2;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2) : "f"(p));
  return tanh_slope(fmaxf((log2 + lse) * inverse_cap_log2, -1.0f));
}

/// Replaces q k by tanh(scale q k / cap).
template <int kCount>
__device__ __forceinline__ void apply_softcap(float (&s)[kCount], float exponent) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = tanh_of(s[i], exponent);
}

}  // namespace precbench::cuda
