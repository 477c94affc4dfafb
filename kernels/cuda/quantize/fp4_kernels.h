// The unquantized source of FP4 codes, for comparisons with them (fp4.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/quantize/from_value.h"

namespace precbench::cuda {

/// Returns the BF16 matrix [rows, k] that a copy's codes represent: `value` or its transpose with the
/// format's transform and the signs of `random`; in `scratch` (prepared_bytes) unless it is the value itself.
const std::uint16_t* prepared_fp4(CudaDevice& device, const QuantFormat& format, const Tensor& value,
                                  const RandomStream& random, bool columns, void* scratch);
std::size_t prepared_bytes(const Tensor& value);

}  // namespace precbench::cuda
