// What FP4's codes are made of, for those who compare with it (fp4.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/quantize/from_value.h"

namespace precbench::cuda {

/// The matrix whose elements a form's codes stand for, BF16 [rows, k]: `value` or its transpose, transformed as the format
/// says, with signs of `random`; in `scratch` (prepared_bytes) where it is not the value itself.
const std::uint16_t* prepared_fp4(CudaDevice& device, const QuantFormat& format, const Tensor& value,
                                  const RandomStream& random, bool columns, void* scratch);
std::size_t prepared_bytes(const Tensor& value);

}  // namespace precbench::cuda
