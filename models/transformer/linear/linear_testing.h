// Helpers for tests of linear layers: a CPU device with memory for quantized copies, and the noise of a cast.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/device/op_testing.h"
#include "models/transformer/linear/linear.h"

namespace precbench::testing {

/// A device, and memory for one layer's quantized copies.
struct Bench {
  std::unique_ptr<Device> device = make_cpu_device(1);
  std::vector<std::byte> memory = std::vector<std::byte>(16 << 20);
  Arena arena{memory.data(), 16 << 20};

  /// Returns an operand with its copies quantized.
  QuantizedTensor prepare(const Tensor& value, const QuantFormat& row, const QuantFormat& col,
                          const RandomStream& random = {}) {
    QuantizedTensor x = make_quantized_tensor(value, row, col);
    x.random = random;
    if (row.quantized())
      x.rowwise = push_gemm_operand(arena, Segment::activations, row, value.rows, value.cols);
    if (col.quantized())
      x.columnwise = push_gemm_operand(arena, Segment::activations, col, value.cols, value.rows);
    if (row.granularity == Granularity::tensor || col.granularity == Granularity::tensor)
      x.amax_out = arena.push(Segment::activations, DType::f32, 1, 1);
    device->quantize({x});
    return x;
  }
};

/// Returns the SQNR in dB of one quantized copy of a value, as the device computes it.
inline double cast_sqnr(const std::vector<float>& x, std::int64_t rows, std::int64_t cols,
                        const QuantFormat& format, bool columns) {
  Bench bench;
  const Owned value(DType::bf16, rows, cols, x), error(DType::f32, 1, 5);
  const QuantizedTensor operand =
      columns ? bench.prepare(value, {}, format) : bench.prepare(value, format, {});
  bench.device->quantization_error({error, value, columns ? operand.columnwise : operand.rowwise, columns});
  return 10 * std::log10(error.floats()[0] / error.floats()[1]);
}

}  // namespace precbench::testing
