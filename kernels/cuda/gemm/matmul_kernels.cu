// The small kernels around cuBLASLt's GEMMs.
//
// broadcast: one scale for a tensor, repeated as a vector. cuBLASLt takes a scalar on one side and a vector
// on the other in no mode, but a vector of equal entries means the same. 4 bytes per output row of the GEMM.
//
// dequantize: BF16 [rows, k] from any quantized form, for GEMMs that this GPU has no native mode for. A
// thread takes 16 codes of one row (16 bytes in, 32 out); every block length is a multiple of 16, so they
// share one scale. Only emulated GEMMs run it, and those make no claim about speed.
#include <cuda_bf16.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/quantize/gemm_operands.cuh"
#include "kernels/cuda/gemm/matmul_kernels.h"

namespace precbench {
namespace {

constexpr int kThreads = 256;
constexpr int kCodesPerThread = 16;

__global__ void broadcast_kernel(float* out, const float* value, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = value[0];
}

/// Rows whose length is no multiple of 16 are read code by code; the recipes' own shapes never are.
__global__ void dequantize_kernel(__nv_bfloat16* out, const std::uint8_t* data, const void* scales,
                                  QuantFormat format, std::int64_t rows, std::int64_t k) {
  const std::int64_t chunks = (k + kCodesPerThread - 1) / kCodesPerThread;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * chunks) return;
  const std::int64_t row = i / chunks, first = i % chunks * kCodesPerThread;
  const float scale = cuda::dequantizing(format, scales, rows, k, row, first);
  const std::uint8_t* from = data + row * k + first;
  __nv_bfloat16* to = out + row * k + first;
  if (k % kCodesPerThread != 0) {
    for (std::int64_t j = 0; j < kCodesPerThread && first + j < k; ++j)
      to[j] = __float2bfloat16_rn(cuda::fp8_decode(from[j], format.dtype) * scale);
    return;
  }
  alignas(16) std::uint8_t codes[kCodesPerThread];
  alignas(16) __nv_bfloat16 values[kCodesPerThread];
  *reinterpret_cast<uint4*>(codes) = *reinterpret_cast<const uint4*>(from);
#pragma unroll
  for (int j = 0; j < kCodesPerThread; ++j)
    values[j] = __float2bfloat16_rn(cuda::fp8_decode(codes[j], format.dtype) * scale);
  reinterpret_cast<uint4*>(to)[0] = reinterpret_cast<const uint4*>(values)[0];
  reinterpret_cast<uint4*>(to)[1] = reinterpret_cast<const uint4*>(values)[1];
}

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

void launch_broadcast(float* out, const float* value, std::int64_t count, cudaStream_t stream) {
  broadcast_kernel<<<blocks_for(count), kThreads, 0, stream>>>(out, value, count);
  PRECBENCH_CHECK(cudaGetLastError());
}

void launch_dequantize(void* out, const GemmOperand& form, cudaStream_t stream) {
  const std::int64_t chunks = (form.k() + kCodesPerThread - 1) / kCodesPerThread;
  dequantize_kernel<<<blocks_for(form.rows() * chunks), kThreads, 0, stream>>>(
      static_cast<__nv_bfloat16*>(out), form.data.as<std::uint8_t>(), form.scale.data, form.format,
      form.rows(), form.k());
  PRECBENCH_CHECK(cudaGetLastError());
}

}  // namespace precbench
