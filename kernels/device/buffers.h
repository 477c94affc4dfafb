// Device memory for checks, tests and the kernel benchmark: tensors and quantized copies that live as long as the
// object.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {

class Buffers {
 public:
  explicit Buffers(Device& device) : device_(device) {}

  /// Returns a tensor with undefined contents.
  Tensor tensor(DType dtype, std::int64_t rows, std::int64_t cols) {
    const DeviceBlock& block = blocks_.emplace_back(device_, bytes_of(dtype, rows * cols));
    return {block.data(), dtype, rows, cols};
  }

  /// Returns a device tensor with the shape and bytes of a host tensor.
  Tensor copy_of(const Tensor& host) {
    Tensor copy = tensor(host.dtype, host.rows, host.cols);
    device_.upload(copy, host.data);
    device_.synchronize();
    return copy;
  }

  /// Returns memory for a quantized copy of `rows` vectors of length k: contents undefined, but scale padding
  /// zero.
  GemmOperand quantized_copy(const QuantFormat& format, std::int64_t rows, std::int64_t k) {
    GemmOperand operand{format, tensor(format.dtype, rows, k), {}, false};
    if (!format.quantized()) return operand;
    const std::int64_t scales = scale_count(format.granularity, rows, k);
    operand.scale = tensor(scale_dtype(format), 1, scales);
    if (format.scale == ScaleType::e4m3) operand.amax = tensor(DType::f32, 1, 1);
    const std::vector<std::byte> zeros(static_cast<std::size_t>(operand.scale.bytes()));
    device_.upload(operand.scale, zeros.data());
    device_.synchronize();
    return operand;
  }

  GemmOperand copy_of(const GemmOperand& host) {
    GemmOperand copy{host.format, copy_of(host.data), {}, host.transposed};
    if (!host.scale.empty()) copy.scale = copy_of(host.scale);
    if (!host.amax.empty()) copy.amax = copy_of(host.amax);
    return copy;
  }

 private:
  Device& device_;
  std::deque<DeviceBlock> blocks_;  // a deque: blocks must not move
};

}  // namespace precbench
