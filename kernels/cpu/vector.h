// Conversion of BF16 or FP32 rows to floats and back, parallel loops over rows, and an exp that compilers
// vectorize.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/numerics/formats.h"
#include "kernels/numerics/multiply_add.h"
#include "kernels/numerics/tensor.h"

namespace precbench::cpu {

/// Returns n elements from `first` on as floats: the tensor's own memory if it is FP32, else converted into
/// `buffer`.
inline const float* load(const Tensor& t, std::int64_t first, std::int64_t n, float* buffer) {
  if (t.dtype == DType::f32) return t.as<float>() + first;
  const std::uint16_t* source = t.as<std::uint16_t>() + first;
  for (std::int64_t i = 0; i < n; ++i) buffer[i] = bf16_decode(source[i]);
  return buffer;
}

/// Rounds n floats to the tensor's dtype and stores them at `first`.
inline void store(const Tensor& t, std::int64_t first, std::int64_t n, const float* values) {
  if (t.dtype == DType::f32) {
    if (t.as<float>() + first != values) std::memcpy(t.as<float>() + first, values, n * sizeof(float));
    return;
  }
  std::uint16_t* target = t.as<std::uint16_t>() + first;
  for (std::int64_t i = 0; i < n; ++i) target[i] = bf16_encode(values[i]);
}

/// Runs body(row, buffers) for every row in [0, rows), with contiguous runs of rows per thread. `buffers` is
/// the thread's own scratch of buffer_floats floats.
template <class Body>
void for_rows([[maybe_unused]] int threads, std::int64_t rows, std::int64_t buffer_floats, Body&& body) {
#pragma omp parallel num_threads(threads) if (rows > 1)
  {
    std::vector<float> buffer(buffer_floats);
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) body(row, buffer.data());
  }
}

/// Sums in sixteen interleaved lanes, added pairwise at the end: vectorizable, and in one fixed order. Each lane starts
/// at 0 and becomes add(i, lane) for each of its elements i.
template <class Add>
float lane_accumulate(std::int64_t n, Add&& add) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = add(i + lane, lanes[lane]);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = add(i, lanes[lane]);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

/// Returns the sum of term(i) over n elements, in the order of lane_accumulate().
template <class Term>
float lane_sum(std::int64_t n, Term&& term) {
  return lane_accumulate(n, [&](std::int64_t i, float sum) { return sum + term(i); });
}

/// Returns the dot product of n elements by FMAs, in the order of lane_accumulate().
inline float lane_dot(std::int64_t n, const float* x, const float* y) {
  return lane_accumulate(n, [&](std::int64_t i, float sum) { return multiply_add(x[i], y[i], sum); });
}

/// Returns true if none of n values is infinite or NaN.
inline bool all_finite(const float* x, std::int64_t n) {
  return lane_sum(n, [&](std::int64_t i) { return x[i] * 0.0f; }) == 0;  // 0 * Inf and 0 * NaN are NaN
}

/// e^x within 1.25 ulp for x in [-87.3, 88.72]; 0 below, +Inf above, NaN stays. Branch-free, so loops over it
/// vectorize: x = n ln2 + r with |r| <= ln2/2 (Cody-Waite in two parts), e^r = 1 + r + r^2 q(r), then 2^n by
/// exponent bits in two factors, so that n = 128 does not overflow early. q is the minimax polynomial of
/// degree 4 (relative error of e^r below 4e-9; Taylor's terms of the same degree leave 2e-7, more than 2
/// ulp).
inline float exp(float x) {
  // also replaces NaN, which has no int value
  const float clamped = x > -87.3f ? (x < 88.8f ? x : 88.8f) : -87.3f;
  const float n = std::nearbyint(clamped * 1.44269504f);
  const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, clamped));
  float p = 1.3814540e-3f;
  p = multiply_add(p, r, 8.3687451e-3f);
  p = multiply_add(p, r, 4.1668391e-2f);
  p = multiply_add(p, r, 1.6666521e-1f);
  p = multiply_add(p, r, 4.9999994e-1f);
  p = multiply_add(p, r, 1.0f);
  p = multiply_add(p, r, 1.0f);
  const std::int32_t half = static_cast<std::int32_t>(n) >> 1;
  const std::int32_t rest = static_cast<std::int32_t>(n) - half;
  const float low = bits_to_float(static_cast<std::uint32_t>(half + 127) << 23);
  const float high = bits_to_float(static_cast<std::uint32_t>(rest + 127) << 23);
  const float e = p * low * high;
  return x < -87.3f ? 0.0f : x == x ? e : x;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + cpu::exp(-x)); }

}  // namespace precbench::cpu
