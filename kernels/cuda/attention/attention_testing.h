// Helpers shared by GPU attention tests: a problem's tensors, and the error bound of a result.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/attention/attention_reference.h"
#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/catch.h"

namespace precbench {

inline std::vector<std::uint16_t> random_bf16(std::int64_t count, float deviation, std::uint64_t seed) {
  std::vector<std::uint16_t> x(count);
  for (std::int64_t i = 0; i < count; ++i) x[i] = bf16_encode(deviation * irwin_hall_normal(seed, i));
  return x;
}

/// Tensors of one attention on the device; keys are in separate rows unless the shape is square. Outputs
/// start as NaN, so that unwritten elements show.
class Problem {
 public:
  Problem(CudaDevice& device, const AttentionShape& shape, float deviation)
      : device_(device),
        shape_(shape),
        qkv_values(random_bf16(shape.tokens() * shape.qkv_width(), deviation, 1)),
        dout_values(random_bf16(shape.tokens() * shape.q_width(), 1.0f, 2)),
        kv_values(random_bf16(shape.square() ? 0 : shape.B * shape.keys() * shape.kv_width(), deviation, 3)),
        qkv_(make(DType::bf16, shape.tokens(), shape.qkv_width())),
        dqkv_(make(DType::bf16, shape.tokens(), shape.qkv_width())),
        dout_(make(DType::bf16, shape.tokens(), shape.q_width())),
        lse_(make(DType::f32, shape.heads, shape.tokens())) {
    out_.value = make(DType::bf16, shape.tokens(), shape.q_width());
    device_.upload(qkv_, qkv_values.data());
    device_.upload(dout_, dout_values.data());
    if (shape.square()) return;
    kv_ = make(DType::bf16, shape.B * shape.keys(), shape.kv_width());
    dkv_ = make(DType::bf16, shape.B * shape.keys(), shape.kv_width());
    device_.upload(kv_, kv_values.data());
  }
  ~Problem() {
    for (const Tensor& x : {qkv_, dqkv_, dout_, lse_, out_.value, kv_, dkv_})
      if (!x.empty()) device_.deallocate(x.data);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void clear() {
    for (const Tensor& x : {dqkv_, lse_, out_.value, dkv_}) {
      if (x.empty()) continue;
      const std::vector<std::uint8_t> ones(x.bytes(), 0xFF);
      device_.upload(x, ones.data());
    }
  }
  void forward() { device_.attention({out_, lse_, qkv_, shape_, kv_}); }
  void backward() { device_.attention_backward({dqkv_, dout_, out_.value, lse_, qkv_, shape_, kv_, dkv_}); }
  AttentionTensors tensors() const { return {out_.value, lse_, qkv_, kv_}; }
  AttentionGradients gradients(void* workspace) const { return {dqkv_, dkv_, dout_, tensors(), workspace}; }

  AttentionResult result() {
    AttentionResult r;
    for (const std::uint16_t x : download<std::uint16_t>(out_.value)) r.out.push_back(bf16_decode(x));
    for (const std::uint16_t x : download<std::uint16_t>(dqkv_)) r.dqkv.push_back(bf16_decode(x));
    for (const float x : download<float>(lse_)) r.lse.push_back(x);
    if (!dkv_.empty())
      for (const std::uint16_t x : download<std::uint16_t>(dkv_)) r.dkv.push_back(bf16_decode(x));
    return r;
  }

  /// Returns all computed bits.
  std::vector<std::uint8_t> bits() {
    std::vector<std::uint8_t> all;
    for (const Tensor& x : {out_.value, lse_, dqkv_, dkv_}) {
      if (x.empty()) continue;
      const auto bytes = download<std::uint8_t>(x);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  Tensor make(DType dtype, std::int64_t rows, std::int64_t cols) {
    return {device_.allocate(bytes_of(dtype, rows * cols)), dtype, rows, cols};
  }
  template <class T>
  std::vector<T> download(const Tensor& x) {
    std::vector<T> host(x.bytes() / sizeof(T));
    device_.download(host.data(), x);
    return host;
  }

  CudaDevice& device_;
  AttentionShape shape_;

 public:
  const std::vector<std::uint16_t> qkv_values, dout_values, kv_values;

 private:
  Tensor qkv_, dqkv_, dout_, lse_, kv_, dkv_;
  QuantizedTensor out_;
};

/// An output of attention: columns [first, first + count) of rows of `width`.
struct Part {
  const char* name;
  std::vector<double> AttentionResult::*values;
  std::int64_t width, first, count;

  double distance(const AttentionResult& x, const AttentionResult& truth) const {
    return rms_difference(x.*values, truth.*values, width, first, count);
  }
};

inline std::vector<Part> parts_of(const AttentionShape& s) {
  const std::int64_t q = s.q_width(), kv = s.kv_heads * s.head_dim, fused = s.qkv_width();
  const std::int64_t first = s.square() ? q : 0, width = s.square() ? fused : s.kv_width();
  const auto of_keys = s.square() ? &AttentionResult::dqkv : &AttentionResult::dkv;
  return {{"out", &AttentionResult::out, q, 0, q},
          {"dq", &AttentionResult::dqkv, fused, 0, q},
          {"dk", of_keys, width, first, kv},
          {"dv", of_keys, width, first + kv, kv}};
}

inline void check_close(const AttentionShape& s, const AttentionResult& got, const AttentionResult& truth,
                        const AttentionResult& naive) {
  const std::vector<Part> parts = parts_of(s);
  // Where terms cancel exactly (dq and dk of a first token are 0), the FP32 rounding errors of those terms
  // remain.
  const Part& dv = parts.back();
  const std::vector<double> zeros((truth.*dv.values).size());
  const double fp32_noise =
      std::ldexp(rms_difference(truth.*dv.values, zeros, dv.width, dv.first, dv.count), -16);
  for (const Part& part : parts) {
    INFO(part.name << " of B " << s.B << " T " << s.T << " keys " << s.keys() << " offset " << s.offset
                   << " heads " << s.heads << ":" << s.kv_heads << " head_dim " << s.head_dim);
    CHECK(part.distance(got, truth) <= 2 * part.distance(naive, truth) + fp32_noise);
  }
  // An error in lse is a relative error of the probabilities, which are then rounded to BF16 (2^-9): 1/32 of
  // that.
  INFO("lse of T " << s.T << " head_dim " << s.head_dim);
  double sum = 0;
  bool none_as_none = true;  // -inf where a query sees no key
  for (std::size_t i = 0; i < truth.lse.size(); ++i) {
    if (std::isinf(truth.lse[i]) || std::isinf(got.lse[i]))
      none_as_none &= truth.lse[i] == got.lse[i];
    else
      sum += (got.lse[i] - truth.lse[i]) * (got.lse[i] - truth.lse[i]);
  }
  CHECK(none_as_none);
  CHECK(std::sqrt(sum / static_cast<double>(truth.lse.size())) <= std::ldexp(1.0, -14));
}

}  // namespace precbench
