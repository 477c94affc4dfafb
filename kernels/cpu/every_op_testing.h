// Every op of the CPU device on fixed values, for tests that compare the bits of its outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/checks/host_tensors.h"
#include "kernels/device/device.h"

namespace precbench::testing {

/// Memory and outputs of the calls of some ops.
class OpRun {
 public:
  /// Returns normal values that an op reads.
  Tensor input(DType dtype, std::int64_t rows, std::int64_t cols, float deviation = 1.0f) {
    return memory_.random(dtype, rows, cols, deviation);
  }
  /// Returns a copy of integers, [values / cols, cols].
  Tensor integers(const std::vector<std::int32_t>& values, std::int64_t cols = 1);
  /// Returns the memory of an output, filled with ones.
  Tensor output(DType dtype, std::int64_t rows, std::int64_t cols) {
    return kept(memory_.tensor(dtype, rows, cols));
  }
  /// Returns normal values that an op changes.
  Tensor changed(DType dtype, std::int64_t rows, std::int64_t cols, float deviation = 1.0f) {
    return kept(input(dtype, rows, cols, deviation));
  }
  /// Returns an output with memory for its copies in these formats.
  QuantizedTensor quantized(const Tensor& value, const QuantFormat& rowwise, const QuantFormat& columnwise);

  const std::vector<Tensor>& outputs() const { return outputs_; }

 private:
  Tensor kept(const Tensor& output) {
    outputs_.push_back(output);
    return output;
  }
  GemmOperand copy(const QuantFormat& format, std::int64_t rows, std::int64_t k);

  checks::HostMemory memory_;
  std::vector<Tensor> outputs_;
};

/// A few related ops.
struct OpGroup {
  const char* name;
  void (*run)(Device& device, OpRun& run);
};

/// Returns all groups. Sizes are no multiple of a vector or of a thread's share, and exceed what an op sums at a time.
const std::vector<OpGroup>& every_op();

}  // namespace precbench::testing
