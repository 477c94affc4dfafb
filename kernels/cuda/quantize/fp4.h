// FP4 forms on the GPU: made after their BF16 value, in kernels of their own (fp4.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_device.h"

namespace precbench::cuda {

/// Whether this form holds FP4, which the engines of tile.cuh and row.cuh leave to quantize_fp4.
inline bool is_fp4(const GemmOperand& form) { return !form.empty() && form.format.dtype == DType::e2m1; }

/// Whether a producer has to write its value: it is wanted, or FP4 forms are made from it.
inline bool writes_value(const QuantizedTensor& x) {
  return x.keep_value || is_fp4(x.rowwise) || is_fp4(x.columnwise);
}

/// Makes the FP4 forms that x wants from its value, which stands in memory by then. Throws Unsupported for widths that
/// are no multiple of 16.
void quantize_fp4(CudaDevice& device, const QuantizedTensor& x);

/// The matrix whose elements a form's codes stand for, BF16 [rows, k]: `value` or its transpose, transformed as the format
/// says, with signs of `random`; in `scratch` (prepared_bytes) where it is not the value itself.
const std::uint16_t* prepared_fp4(CudaDevice& device, const QuantFormat& format, const Tensor& value,
                                  const RandomStream& random, bool columns, void* scratch);
std::size_t prepared_bytes(const Tensor& value);

}  // namespace precbench::cuda
