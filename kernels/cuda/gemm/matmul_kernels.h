// Launchers of the small kernels around cuBLASLt's GEMMs; matmul_kernels.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/device.h"

namespace precbench {

/// out[0..count) = value[0].
void launch_broadcast(float* out, const float* value, std::int64_t count, cudaStream_t stream);

/// out (BF16 [rows, k]) = data * scale of a quantized copy, in FP32 and rounded once; exact for power-of-two
/// scales and for FP4, whose k is a multiple of 16. `whole`: times the factor of an FP4 tensor, which is
/// otherwise in a GEMM's alpha. A custom format always has its tensor's factor.
void launch_dequantize(void* out, const GemmOperand& operand, cudaStream_t stream, bool whole = false);

/// Writes a copy's power-of-two scales as exponents of blocks of 32 in cuBLASLt's layout
/// (numerics/mx_expansion.h), padding with zeros; `out` has scale_count(block_1x32, rows, k) bytes.
void launch_expand_scales(std::uint8_t* out, const GemmOperand& operand, cudaStream_t stream);

/// out[0] = alpha of a GEMM of FP4 tensors, out[1] = beta.
void launch_factors(float* out, const GemmOperand& a, const GemmOperand& b, float beta, cudaStream_t stream);

}  // namespace precbench
