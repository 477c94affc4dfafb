// Launchers of the small kernels around cuBLASLt's GEMMs; matmul_kernels.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/device.h"

namespace precbench {

/// out[0..count) = value[0].
void launch_broadcast(float* out, const float* value, std::int64_t count, cudaStream_t stream);

/// out (BF16 [rows, k]) = data * scale of a quantized form, in FP32 and rounded once; exact for power-of-two
/// scales.
void launch_dequantize(void* out, const GemmOperand& form, cudaStream_t stream);

}  // namespace precbench
