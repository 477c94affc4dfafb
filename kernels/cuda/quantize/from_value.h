// Quantized copies that the engines of tile.cuh and row.cuh leave to separate kernels, which read the BF16
// value: FP4 (fp4.cu), and formats that no GPU multiplies (emulated.cu).
#pragma once

#include "kernels/cuda/cuda_device.h"

namespace precbench::cuda {

inline bool is_fp4(const GemmOperand& operand) {
  return !operand.empty() && operand.format.dtype == DType::e2m1;
}

inline bool made_from_value(const GemmOperand& operand) {
  return is_fp4(operand) || (!operand.empty() && always_emulated(operand.format));
}

/// Returns true if a producer must write its value: it is kept, or copies are made from it.
inline bool writes_value(const QuantizedTensor& x) {
  return x.keep_value || made_from_value(x.rowwise) || made_from_value(x.columnwise);
}

/// Makes the FP4 copies requested by x from its value in memory. Throws Unsupported for widths that are not a
/// multiple of 16.
void quantize_fp4(CudaDevice& device, const QuantizedTensor& x);
/// The same for formats that no GPU multiplies; the amax of a scale per tensor is in amax_in or amax_out.
void quantize_emulated(CudaDevice& device, const QuantizedTensor& x);

/// The last step of every producer.
inline void quantize_from_value(CudaDevice& device, const QuantizedTensor& x) {
  quantize_fp4(device, x);
  quantize_emulated(device, x);
}

}  // namespace precbench::cuda
