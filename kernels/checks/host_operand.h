// A GEMM operand on the host: random BF16 rows, their quantized copy, and its exact values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/device/operands.h"

namespace precbench::checks {

/// Rows differ in size, and so do their blocks of 128, by up to 2^8, so that a misplaced scale shows. `view`
/// points into the vectors.
struct HostOperand {
  std::vector<std::uint16_t> bf16;
  std::vector<std::uint8_t> data;
  std::vector<std::byte> scales;
  std::vector<float> amax = {0.0f};  ///< for FP4 with e4m3 scales
  std::vector<double> values;        ///< exact values of the device's input, [rows, k]; may be empty
  GemmOperand view;
  std::int64_t rows = 0, k = 0;

  /// Returns the exact values of a row: a part of `values`, or dequantized into `buffer`.
  const double* row(std::int64_t r, std::vector<double>& buffer) const;
};

/// Returns the exact value that a device reads at (r, c), in FP64.
double dequantized(const GemmOperand& operand, std::int64_t rows, std::int64_t k, std::int64_t r,
                   std::int64_t c);

/// Fills `bf16` ([rows, k], or [k, rows] if transposed) with the values of an operand.
void fill_operand(std::uint16_t* bf16, std::int64_t rows, std::int64_t k, bool transposed, unsigned seed);

/// Returns an operand quantized by the CPU device, with its values.
HostOperand make_quantized_tensor(const QuantFormat& format, std::int64_t rows, std::int64_t k,
                                  bool transposed, unsigned seed);

}  // namespace precbench::checks
