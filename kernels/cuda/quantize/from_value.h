// Quantized copies that the engines of tile.cuh and row.cuh leave to separate kernels, which read the BF16
// value: FP4 (fp4.cu), and formats held in BF16 (held_in_bf16.cu).
#pragma once

#include "kernels/cuda/cuda_device.h"

namespace precbench::cuda {

inline bool is_fp4(const GemmOperand& operand) {
  return !operand.empty() && operand.format.dtype == DType::e2m1;
}

inline bool made_from_value(const GemmOperand& operand) {
  return is_fp4(operand) || (!operand.empty() && held_in_bf16(operand.format.dtype));
}

/// Returns true if a producer must write its value: it is kept, or copies are made from it.
inline bool writes_value(const QuantizedTensor& x) {
  return x.keep_value || made_from_value(x.rowwise) || made_from_value(x.columnwise);
}

/// Makes the FP4 copies requested by x from its value in memory. Throws Unsupported for widths that are not a
/// multiple of 16.
void quantize_fp4(CudaDevice& device, const QuantizedTensor& x);
/// The same for formats held in BF16; the tensor's amax, if needed, is in amax_in or amax_out.
void quantize_held_in_bf16(CudaDevice& device, const QuantizedTensor& x);

/// The last step of every producer.
inline void quantize_from_value(CudaDevice& device, const QuantizedTensor& x) {
  quantize_fp4(device, x);
  quantize_held_in_bf16(device, x);
}

}  // namespace precbench::cuda
