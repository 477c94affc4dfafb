// The small kernels around cuBLASLt's GEMMs.
//
// broadcast: a per-tensor scale repeated as a vector. cuBLASLt has no mode for a scalar on one side and a
// vector on the other, but a vector of equal entries is equivalent. 4 bytes per output row of the GEMM.
//
// expand_scales: power-of-two scales as MXFP8 exponents, for GPUs that support only those. It writes a byte
// per 32 codes and reads fewer FP32 scales.
//
// factors: alpha and beta of a GEMM of FP4 tensors, which cuBLASLt reads from device memory.
//
// dequantize: BF16 [rows, k] from any quantized copy, for GEMMs without a native mode on this GPU. A thread
// takes 16 codes of one row (16 or 32 bytes in, 32 out); every block length is a multiple of 16, so they
// share one scale. Only emulated GEMMs run it, and for those no speed is reported.
#include <cuda_bf16.h>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/matmul_kernels.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/custom_format.cuh"
#include "kernels/cuda/quantize/gemm_operands.cuh"
#include "kernels/numerics/fp4.h"
#include "kernels/numerics/mx_expansion.h"

namespace precbench {
namespace {

constexpr int kMatmulThreads = 256;
constexpr int kCodesPerThread = 16;

__global__ void broadcast_kernel(float* out, const float* value, std::int64_t count) {
  wait_for_work_before();
  const std::int64_t i = std::int64_t{blockIdx.x} * kMatmulThreads + threadIdx.x;
  if (i < count) out[i] = value[0];
}

__global__ void expand_scales_kernel(std::uint8_t* out, const float* scales, Granularity granularity,
                                     std::int64_t rows, std::int64_t k, std::int64_t entries) {
  wait_for_work_before();
  const std::int64_t i = std::int64_t{blockIdx.x} * kMatmulThreads + threadIdx.x;
  if (i < entries) out[i] = expanded_entry(granularity, scales, rows, k, i);
}

__device__ inline float decode(std::uint8_t code, DType dtype) { return cuda::fp8_decode(code, dtype); }
__device__ inline float decode(std::uint16_t held, DType) { return bf16_decode(held); }

/// Chunk of kCodesPerThread elements that a thread converts. Counted in 32 bits, whose divisions are short.
struct Chunk {
  std::int64_t row, first;
  bool inside;

  __device__ Chunk(std::int64_t rows, std::int64_t k) {
    const auto chunks = static_cast<std::uint32_t>((k + kCodesPerThread - 1) / kCodesPerThread);
    const std::uint32_t i = blockIdx.x * kMatmulThreads + threadIdx.x, of_row = i / chunks;
    row = of_row;
    first = std::int64_t{i - of_row * chunks} * kCodesPerThread;
    inside = row < rows;
  }
};

/// Code: FP8, or the storage of a format held in BF16. Rows whose length is not a multiple of 16 are read
/// code by code; the recipes' own shapes never are.
template <class Code>
__global__ void dequantize_kernel(__nv_bfloat16* out, const Code* data, const void* scales,
                                  QuantFormat format, std::int64_t rows, std::int64_t k) {
  wait_for_work_before();
  const Chunk chunk(rows, k);
  if (!chunk.inside) return;
  const std::int64_t row = chunk.row, first = chunk.first;
  const float scale = cuda::dequantizing(format, scales, rows, k, row, first);
  const Code* from = data + row * k + first;
  __nv_bfloat16* to = out + row * k + first;
  if (k % kCodesPerThread != 0) {
    for (std::int64_t j = 0; j < kCodesPerThread && first + j < k; ++j)
      to[j] = __float2bfloat16_rn(decode(from[j], format.dtype) * scale);
    return;
  }
  alignas(16) Code codes[kCodesPerThread];
  alignas(16) __nv_bfloat16 values[kCodesPerThread];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof codes / sizeof(uint4)); ++i)
    reinterpret_cast<uint4*>(codes)[i] = reinterpret_cast<const uint4*>(from)[i];
#pragma unroll
  for (int j = 0; j < kCodesPerThread; ++j)
    values[j] = __float2bfloat16_rn(decode(codes[j], format.dtype) * scale);
  reinterpret_cast<uint4*>(to)[0] = reinterpret_cast<const uint4*>(values)[0];
  reinterpret_cast<uint4*>(to)[1] = reinterpret_cast<const uint4*>(values)[1];
}

/// FP4: eight bytes per thread, whose scale times any code is exact in BF16. With `amax` also the tensor's
/// factor, rounded once.
__global__ void dequantize_fp4_kernel(__nv_bfloat16* out, const std::uint8_t* data, const void* scales,
                                      const float* amax, bool whole, QuantFormat format, std::int64_t rows,
                                      std::int64_t k) {
  wait_for_work_before();
  const Chunk chunk(rows, k);
  if (!chunk.inside) return;
  const std::int64_t first = chunk.row * k + chunk.first;
  const float scale = cuda::dequantizing(format, scales, rows, k, chunk.row, chunk.first);
  const uint2 codes = *reinterpret_cast<const uint2*>(data + first / 2);
  const float factor = whole ? fp4_tensor_factor(format, amax ? *amax : 0.0f) : 1.0f;
  alignas(16) std::uint32_t pairs[kCodesPerThread / 2];
#pragma unroll
  for (int j = 0; j < kCodesPerThread / 2; ++j) {
    const std::uint32_t byte = (j < 4 ? codes.x : codes.y) >> (8 * (j % 4));
    pairs[j] = cuda::pack(e2m1_decode(static_cast<std::uint8_t>(byte)) * scale * factor,
                          e2m1_decode(static_cast<std::uint8_t>(byte >> 4)) * scale * factor);
  }
  auto* to = reinterpret_cast<uint4*>(out + first);
  to[0] = reinterpret_cast<const uint4*>(pairs)[0];
  to[1] = reinterpret_cast<const uint4*>(pairs)[1];
}

/// A custom format (is_custom): one element per thread, always with the tensor's factor.
__global__ void dequantize_custom_kernel(__nv_bfloat16* out, const cuda::CustomCopy operand,
                                         const __grid_constant__ Grid grid) {
  wait_for_work_before();
  const std::int64_t i = std::int64_t{blockIdx.x} * kMatmulThreads + threadIdx.x;
  if (i >= operand.rows * operand.k) return;
  out[i] =
      __float2bfloat16_rn(operand.element(grid, i) * operand.scale(i / operand.k, i % operand.k) * operand.tensor_factor());
}

__global__ void factors_kernel(float* out, QuantFormat a, QuantFormat b, const float* amax_a,
                               const float* amax_b, float beta) {
  wait_for_work_before();
  out[0] = fp4_alpha(a, b, amax_a ? *amax_a : 0.0f, amax_b ? *amax_b : 0.0f);
  out[1] = beta;
}

const float* amax_of(const GemmOperand& operand) {
  return operand.amax.empty() ? nullptr : operand.amax.as<float>();
}

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>((threads + kMatmulThreads - 1) / kMatmulThreads);
}

}  // namespace

void launch_broadcast(float* out, const float* value, std::int64_t count, cudaStream_t stream) {
  broadcast_kernel<<<blocks_for(count), kMatmulThreads, 0, stream>>>(out, value, count);
  PRECBENCH_CHECK(cudaGetLastError());
}

void launch_dequantize(void* out, const GemmOperand& operand, cudaStream_t stream, bool whole) {
  const std::int64_t chunks = (operand.k() + kCodesPerThread - 1) / kCodesPerThread;
  if (operand.rows() * chunks >= std::int64_t{1} << 32)
    throw Unsupported("the CUDA device converts matrices of fewer than 2^36 elements");
  const unsigned blocks = blocks_for(operand.rows() * chunks);
  auto* to = static_cast<__nv_bfloat16*>(out);
  const auto* data = operand.data.as<std::uint8_t>();
  if (operand.format.dtype == DType::e2m1)
    dequantize_fp4_kernel<<<blocks, kMatmulThreads, 0, stream>>>(to, data, operand.scale.data, amax_of(operand), whole,
                                                           operand.format, operand.rows(), operand.k());
  else if (is_custom(operand.format))
    dequantize_custom_kernel<<<blocks_for(operand.rows() * operand.k()), kMatmulThreads, 0, stream>>>(
        to, cuda::CustomCopy(operand), cuda::grid_argument(operand.format));
  else if (held_in_bf16(operand.format.dtype))
    dequantize_kernel<<<blocks, kMatmulThreads, 0, stream>>>(to, operand.data.as<std::uint16_t>(), operand.scale.data,
                                                       operand.format, operand.rows(), operand.k());
  else
    dequantize_kernel<<<blocks, kMatmulThreads, 0, stream>>>(to, data, operand.scale.data, operand.format,
                                                       operand.rows(), operand.k());
  PRECBENCH_CHECK(cudaGetLastError());
}

void launch_expand_scales(std::uint8_t* out, const GemmOperand& operand, cudaStream_t stream) {
  const std::int64_t entries = scale_count(Granularity::block_1x32, operand.rows(), operand.k());
  expand_scales_kernel<<<blocks_for(entries), kMatmulThreads, 0, stream>>>(
      out, operand.scale.as<float>(), operand.format.granularity, operand.rows(), operand.k(), entries);
  PRECBENCH_CHECK(cudaGetLastError());
}

void launch_factors(float* out, const GemmOperand& a, const GemmOperand& b, float beta, cudaStream_t stream) {
  factors_kernel<<<1, 1, 0, stream>>>(out, a.format, b.format, amax_of(a), amax_of(b), beta);
  PRECBENCH_CHECK(cudaGetLastError());
}

}  // namespace precbench
