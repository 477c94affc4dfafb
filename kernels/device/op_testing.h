// Helpers of the CPU device's op tests: tensors that own their memory, random values, and two measures of
// accuracy: an FP64 reference for values, FP64 central differences for gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/devices.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/catch.h"

namespace precbench::testing {

/// A tensor that owns its memory. Fresh memory holds NaN in every dtype, so that an element that an op
/// forgets to write, or reads too early, shows.
class Owned {
 public:
  Owned() = default;
  Owned(DType dtype, std::int64_t rows, std::int64_t cols)
      : memory_(bytes_of(dtype, rows * cols), std::byte{0xFF}), tensor_{memory_.data(), dtype, rows, cols} {}
  Owned(DType dtype, std::int64_t rows, std::int64_t cols, const std::vector<float>& values)
      : Owned(dtype, rows, cols) {
    // Thrown, not asserted: ranks that run as threads make tensors too, and Catch2's assertions are for one
    // thread.
    if (static_cast<std::int64_t>(values.size()) != tensor_.size())
      throw std::invalid_argument("a tensor of a test needs as many values as elements");
    for (std::int64_t i = 0; i < tensor_.size(); ++i)
      if (dtype == DType::f32)
        tensor_.as<float>()[i] = values[i];
      else
        tensor_.as<std::uint16_t>()[i] = bf16_encode(values[i]);
  }
  Owned(const std::vector<std::int32_t>& values)
      : Owned(DType::i32, static_cast<std::int64_t>(values.size()), 1) {
    std::memcpy(tensor_.data, values.data(), tensor_.bytes());
  }
  Owned(const Owned& other) : memory_(other.memory_), tensor_(other.tensor_) {
    if (!other.tensor_.empty()) tensor_.data = memory_.data();
  }
  Owned& operator=(Owned other) {
    memory_.swap(other.memory_);
    tensor_ = other.tensor_;
    return *this;
  }

  operator const Tensor&() const { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  const std::vector<std::byte>& bytes() const { return memory_; }
  std::vector<float> floats() const {
    std::vector<float> values(tensor_.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          tensor_.dtype == DType::f32 ? tensor_.as<float>()[i] : bf16_decode(tensor_.as<std::uint16_t>()[i]);
    return values;
  }
  std::vector<double> doubles() const {
    const std::vector<float> values = floats();
    return {values.begin(), values.end()};
  }

 private:
  std::vector<std::byte> memory_;
  Tensor tensor_;
};

/// Returns n values ~ N(0, std), one stream per seed.
inline std::vector<float> normal(std::uint64_t seed, std::int64_t n, float std = 1.0f) {
  std::vector<float> values(n);
  for (std::int64_t i = 0; i < n; ++i) values[i] = std * irwin_hall_normal(seed, i);
  return values;
}

/// Returns the values rounded to BF16.
inline std::vector<float> rounded(std::vector<float> values) {
  for (float& v : values) v = bf16_decode(bf16_encode(v));
  return values;
}

inline QuantizedTensor operand(const Tensor& value) { return {.value = value}; }

/// sqrt(mean((x - reference)^2) / mean(reference^2)).
template <class Value>
double relative_error(const std::vector<Value>& x, const std::vector<double>& reference) {
  REQUIRE(x.size() == reference.size());
  double error = 0, scale = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - reference[i]) * (x[i] - reference[i]);
    scale += reference[i] * reference[i];
  }
  return scale == 0 ? std::sqrt(error) : std::sqrt(error / scale);
}

/// Allowed FP32 error of an op's result: 16 unit roundoffs, RMS over a tensor. The ops chain about ten
/// roundings per element and have short sums; a wrong term, sign or index causes an error of 1e-2 or more.
inline constexpr double kFp32Error = 16 * 0x1p-24;

/// Returns the derivative of loss(x) along `direction`, by central differences in FP64. With a step of 1e-5
/// of x's size, truncation and rounding errors are both near 1e-10 of a smooth function's scale, far below
/// FP32's.
template <class Loss>
double slope(Loss&& loss, const std::vector<double>& x, const std::vector<double>& direction) {
  double squares = 0;
  for (double v : x) squares += v * v;
  const double step = 1e-5 * std::sqrt(squares / static_cast<double>(x.size()));
  std::vector<double> moved(x);
  for (std::size_t i = 0; i < x.size(); ++i) moved[i] = x[i] + step * direction[i];
  const double above = loss(moved);
  for (std::size_t i = 0; i < x.size(); ++i) moved[i] = x[i] - step * direction[i];
  return (above - loss(moved)) / (2 * step);
}

/// Checks `gradient` against the derivatives of `loss` at `x`: along the axis of every `stride`-th element,
/// and along four random dense directions.
template <class Loss>
void check_gradient(Loss&& loss, const std::vector<double>& x, const std::vector<float>& gradient,
                    std::size_t stride = 1) {
  REQUIRE(gradient.size() == x.size());
  double squares = 0;
  for (float g : gradient) squares += static_cast<double>(g) * g;
  const double rms = std::sqrt(squares / static_cast<double>(x.size()));
  // A single element is not an RMS over many: it may be 4 times as far off.
  const double tolerance = 4 * kFp32Error;
  std::vector<double> direction(x.size());
  for (std::size_t i = 0; i < x.size(); i += stride) {
    direction[i] = 1;
    const double expected = slope(loss, x, direction);
    direction[i] = 0;
    INFO("element " << i << ": gradient " << gradient[i] << ", finite difference " << expected);
    REQUIRE(std::fabs(gradient[i] - expected) <= tolerance * (rms + std::fabs(expected)));
  }
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    double along = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      direction[i] = irwin_hall_normal(seed, i);
      along += gradient[i] * direction[i];
    }
    const double expected = slope(loss, x, direction);
    INFO("direction " << seed << ": gradient " << along << ", finite difference " << expected);
    // Independent errors of the elements add like a random walk.
    REQUIRE(std::fabs(along - expected) <= tolerance * std::sqrt(squares));
  }
}

inline double dot(const std::vector<double>& a, const std::vector<float>& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

}  // namespace precbench::testing
