// Shared by the benchmark programs: random operands, and how a program ends.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "kernels/base/errors.h"
#include "kernels/device/buffers.h"

namespace precbench {

inline Tensor random_bf16(Buffers& buffers, Device& device, std::int64_t rows, std::int64_t cols,
                          std::uint64_t seed) {
  const Tensor x = buffers.tensor(DType::bf16, rows, cols);
  device.init_normal({x, 1.0f, seed, 0});
  return x;
}

/// Returns a random operand of `rows` vectors of k. `scales`: their number in all groups, if they are per row
/// or per tensor; 0: those of one GEMM.
inline GemmOperand random_operand(Buffers& buffers, Device& device, const QuantFormat& format,
                                  std::int64_t rows, std::int64_t k, std::uint64_t seed,
                                  std::int64_t scales = 0) {
  Buffers temporary(device);
  const QuantizedTensor x{.value = random_bf16(temporary, device, rows, k, seed),
                          .rowwise = buffers.quantized_copy(format, rows, k),
                          .amax_out = temporary.tensor(DType::f32, 1, 1)};
  device.quantize({x});
  GemmOperand operand = x.rowwise;
  if (scales > 0 && (format.granularity == Granularity::row || format.granularity == Granularity::tensor)) {
    operand.scale = buffers.tensor(DType::f32, 1, scales);
    device.fill({operand.scale, 0.01f});
  }
  device.synchronize();
  return operand;
}

/// Returns the exit status of run(); prints its error.
template <class Run>
int run_bench(const char* name, Run&& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return dynamic_cast<const InvalidInput*>(&error) ? 2 : 1;
  }
}

}  // namespace precbench
