// Host tensors that own their memory, and comparisons of their bits.
#pragma once

#include <cmath>
#include <cstring>
#include <list>
#include <vector>

#include "kernels/numerics/formats.h"
#include "kernels/numerics/random.h"
#include "kernels/numerics/tensor.h"

namespace precbench::checks {

/// Host memory for tensors. Every byte starts as 0xFF (NaN), so that unwritten elements show.
class HostMemory {
 public:
  Tensor tensor(DType dtype, std::int64_t rows, std::int64_t cols) {
    blocks_.emplace_back((static_cast<std::size_t>(bytes_of(dtype, rows * cols)) + 3) / 4, 0xFFFFFFFFu);
    return {blocks_.back().data(), dtype, rows, cols};
  }
  /// Returns normal values with the given deviation, from a fresh part of the random stream.
  Tensor random(DType dtype, std::int64_t rows, std::int64_t cols, float deviation) {
    const Tensor t = tensor(dtype, rows, cols);
    for (std::int64_t i = 0; i < t.size(); ++i) set(t, i, deviation * irwin_hall_normal(7, drawn_++));
    return t;
  }
  /// Returns random token ids in [0, limit).
  Tensor tokens(std::int64_t count, std::int64_t limit) {
    const Tensor t = tensor(DType::i32, count, 1);
    for (std::int64_t i = 0; i < count; ++i)
      t.as<std::int32_t>()[i] = static_cast<std::int32_t>(random_bits(8, drawn_++) % limit);
    return t;
  }
  Tensor converted(const Tensor& from, DType dtype) {
    if (from.empty()) return {};
    const Tensor t = tensor(dtype, from.rows, from.cols);
    for (std::int64_t i = 0; i < t.size(); ++i) set(t, i, get(from, i));
    return t;
  }

  static float get(const Tensor& t, std::int64_t i) {
    return t.dtype == DType::f32 ? t.as<float>()[i] : bf16_decode(t.as<std::uint16_t>()[i]);
  }
  static void set(const Tensor& t, std::int64_t i, float x) {
    if (t.dtype == DType::f32)
      t.as<float>()[i] = x;
    else
      t.as<std::uint16_t>()[i] = bf16_encode(x);
  }
  static std::vector<double> values(const Tensor& t) {
    std::vector<double> x(t.size());
    for (std::int64_t i = 0; i < t.size(); ++i) x[i] = get(t, i);
    return x;
  }

 private:
  std::list<std::vector<std::uint32_t>> blocks_;
  std::uint64_t drawn_ = 0;
};

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

/// Returns true if bits are equal or both are NaN: a NaN made by arithmetic has other bits on a CPU than on a
/// GPU.
inline bool same_scales(const Tensor& a, const Tensor& b) {
  if (a.dtype != DType::f32) return same_bits(a, b);
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const float x = a.as<float>()[i], y = b.as<float>()[i];
    if (float_to_bits(x) != float_to_bits(y) && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return a.size() == b.size();
}

}  // namespace precbench::checks
