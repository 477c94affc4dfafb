// A device under test beside the CPU device, and the memory of one comparison. Memory starts as NaN, so that
// unwritten elements show.
#pragma once

#include <memory>
#include <string>

#include "kernels/checks/host_tensors.h"
#include "kernels/device/buffers.h"
#include "kernels/device/device.h"

namespace precbench::checks {

/// Formats of an op's quantized outputs; formats that are not quantized are not requested.
struct OutputFormats {
  QuantFormat rowwise, columnwise;

  bool one_scale() const {
    return rowwise.granularity == Granularity::tensor || columnwise.granularity == Granularity::tensor;
  }
};

class TwoDevices {
 public:
  explicit TwoDevices(Device& device, int cpu_threads = 2);

  Device& device() { return device_; }
  Device& cpu() { return *cpu_; }
  HostMemory& host() { return *host_; }
  bool on_cpu() const { return device_.name() == "cpu"; }

  /// Frees all tensors.
  void start();

  /// Returns a device copy of a host tensor or quantized copy.
  Tensor put(const Tensor& t) { return t.empty() ? Tensor{} : buffers_->copy_of(t); }
  GemmOperand put(const GemmOperand& operand) { return buffers_->copy_of(operand); }
  /// Returns a host copy of a device tensor.
  Tensor fetch(const Tensor& t);

  /// Returns an output tensor on the device, filled with NaN.
  Tensor output(DType dtype, std::int64_t rows, std::int64_t cols) {
    return put(host_->tensor(dtype, rows, cols));
  }
  GemmOperand quantized_copy(const QuantFormat& format, std::int64_t rows, std::int64_t k);
  QuantizedTensor operand(const OutputFormats& formats, std::int64_t rows, std::int64_t cols);
  /// Returns `value` on the CPU with memory for quantized copies of the same formats.
  QuantizedTensor host_operand(const OutputFormats& formats, const Tensor& value);

  /// Compares the device's quantized copies and amax_out with the CPU device's for `value`, bit for bit.
  /// Returns the first difference, "2 of 98304 rowwise codes differ, first at row 3 column 70"; empty: none.
  std::string copies_difference(const QuantizedTensor& result, const Tensor& value);

 private:
  GemmOperand host_copy(const QuantFormat& format, std::int64_t rows, std::int64_t k);

  Device& device_;
  std::unique_ptr<Device> cpu_;
  std::unique_ptr<HostMemory> host_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace precbench::checks
