// Parts of kernel_bench, and random operands for them.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

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

/// Parts of the program. `words`: the arguments behind the part's name. Throw InvalidInput for others than theirs.
void bench_attention(const std::vector<std::string>& words);
void bench_experts(const std::vector<std::string>& words);
void bench_grouped(const std::vector<std::string>& words);

}  // namespace precbench
