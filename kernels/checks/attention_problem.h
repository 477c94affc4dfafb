// The tensors of one attention on a device, and its results on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/checks/attention_reference.h"
#include "kernels/device/buffers.h"
#include "kernels/device/device.h"

namespace precbench::checks {

/// Keys are in separate rows unless the shape is square. Outputs start as NaN, so that unwritten elements show.
class AttentionProblem {
 public:
  AttentionProblem(Device& device, const AttentionShape& shape, float deviation);

  /// Fills the outputs with NaN.
  void clear();
  void forward() { device_.attention({out_, lse_, qkv_, shape_, kv_}); }
  void backward() { device_.attention_backward({dqkv_, dout_, out_.value, lse_, qkv_, shape_, kv_, dkv_}); }

  AttentionResult result();
  /// Returns all computed bits.
  std::vector<std::uint8_t> bits();

  const AttentionShape& shape() const { return shape_; }
  const Tensor& qkv() const { return qkv_; }
  const Tensor& kv() const { return kv_; }
  const Tensor& out() const { return out_.value; }
  const Tensor& lse() const { return lse_; }
  const Tensor& dqkv() const { return dqkv_; }
  const Tensor& dkv() const { return dkv_; }
  const Tensor& dout() const { return dout_; }

 private:
  template <class T>
  std::vector<T> download(const Tensor& x);

  Device& device_;
  AttentionShape shape_;

 public:
  const std::vector<std::uint16_t> qkv_values, dout_values, kv_values;

 private:
  Buffers buffers_;
  Tensor qkv_, dqkv_, dout_, lse_, kv_, dkv_;
  QuantizedTensor out_;
};

}  // namespace precbench::checks
