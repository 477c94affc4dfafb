// Quantized copies in formats that no GPU multiplies (numerics/custom_format.h, and elements held in BF16), as
// kernels read and write them: one element at a time, since their speed does not matter.
#pragma once

#include <cstdint>

#include "kernels/device/operands.h"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::cuda {

/// Arguments of a copy [rows, k]. Kernels take the grid beside it, as __grid_constant__; without one an empty
/// Grid is passed.
struct CustomCopy {
  void* data;
  void* scales;
  const float* tensor_amax;  ///< for e4m3 scales, else null
  std::int64_t rows, k;
  DType dtype;
  std::uint8_t dropped_bits;
  Granularity granularity;
  ScaleRule rule;

  explicit CustomCopy(const GemmOperand& operand)
      : data(operand.data.data),
        scales(operand.scale.data),
        tensor_amax(operand.amax.empty() ? nullptr : operand.amax.as<float>()),
        rows(operand.data.rows),
        k(operand.data.cols),
        dtype(operand.format.dtype),
        dropped_bits(operand.format.dropped_bits),
        granularity(operand.format.granularity),
        rule(scale_rule(operand.format)) {}

  /// Returns the element at `at` in the format's own units.
  __device__ float element(const Grid& grid, std::int64_t at) const {
    if (held_in_bf16(dtype)) return bf16_decode(static_cast<const std::uint16_t*>(data)[at]);
    const auto* codes = static_cast<const std::uint8_t*>(data);
    if (dtype == DType::grid4) return grid_decode(grid, code_of_two(codes[at / 2], at));
    const std::uint8_t code = codes[at];
    return dtype == DType::grid   ? grid_decode(grid, code)
           : dtype == DType::e4m3 ? e4m3_decode(code)
                                  : e5m2_decode(code);
  }
  /// Returns the block's scale of an element, without the tensor's factor.
  __device__ float scale(std::int64_t row, std::int64_t k_index) const {
    const std::int64_t block = block_length(granularity);
    return stored_scale(rule.type, scales,
                        scale_index(granularity, rows, k, row, block ? k_index / block : 0));
  }
  __device__ float tensor_factor() const {
    return custom_tensor_factor(rule, tensor_amax ? *tensor_amax : 0.0f);
  }
};

/// Returns the grid to pass to a kernel.
inline Grid grid_argument(const QuantFormat& format) { return format.grid ? *format.grid : Grid{}; }

}  // namespace precbench::cuda
