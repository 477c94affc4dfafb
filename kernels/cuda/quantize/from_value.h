// Forms that the engines of tile.cuh and row.cuh leave to kernels of their own, which make them of the BF16 value: FP4's
// (fp4.cu), and those whose elements are held in BF16 (held_in_bf16.cu).
#pragma once

#include "kernels/cuda/cuda_device.h"

namespace precbench::cuda {

inline bool is_fp4(const GemmOperand& form) { return !form.empty() && form.format.dtype == DType::e2m1; }

inline bool made_from_value(const GemmOperand& form) {
  return is_fp4(form) || (!form.empty() && held_in_bf16(form.format.dtype));
}

/// Whether a producer has to write its value: it is wanted, or forms are made from it.
inline bool writes_value(const QuantizedTensor& x) {
  return x.keep_value || made_from_value(x.rowwise) || made_from_value(x.columnwise);
}

/// Makes the FP4 forms that x wants from its value, which stands in memory by then. Throws Unsupported for widths that
/// are no multiple of 16.
void quantize_fp4(CudaDevice& device, const QuantizedTensor& x);
/// The same of forms held in BF16; the tensor's amax, where they need it, stands in amax_in or amax_out.
void quantize_held_in_bf16(CudaDevice& device, const QuantizedTensor& x);

/// The last step of every producer.
inline void quantize_from_value(CudaDevice& device, const QuantizedTensor& x) {
  quantize_fp4(device, x);
  quantize_held_in_bf16(device, x);
}

}  // namespace precbench::cuda
