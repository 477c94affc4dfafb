// Quantization error of a copy: sums over all elements, in FP64, per tile or per run of chunks.
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/fp4_kernels.h"
#include "kernels/cuda/quantize/gemm_operands.cuh"
#include "kernels/numerics/fp4.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kErrorTerms = 5;
constexpr int kErrorTile = 32;
constexpr int kErrorThreads = 256;

/// Adds the terms of one element, quantized from v to q. `at_end`: its code is the largest.
__device__ inline void add_error(double (&sums)[kErrorTerms], float v, float q, bool at_end,
                                 float half_steps) {
  const double difference = static_cast<double>(v) - q;
  sums[0] += static_cast<double>(v) * v;
  sums[1] += difference * difference;
  sums[2] += v != 0;
  sums[3] += v != 0 && q == 0;
  // Saturated: the cast hit the format's end and lost more than rounding would. Exact with a power-of-two
  // scale, for which the division q is exact.
  const float magnitude = fabsf(q);
  sums[4] += at_end && fabsf(v) > magnitude + magnitude / half_steps;
}

__device__ inline void leave_sums(double* partial, const double (&sums)[kErrorTerms],
                                  double (&buffers)[kErrorTerms][kWarp]) {
#pragma unroll
  for (int i = 0; i < kErrorTerms; ++i) {
    const double sum = block_sum(sums[i], buffers[i]);
    if (threadIdx.x == 0) partial[blockIdx.x * kErrorTerms + i] = sum;
  }
}

/// Returns the element at `at` in the format's own units.
__device__ inline float element(const FormArgs& form, std::int64_t at) {
  return held_in_bf16(form.dtype) ? bf16_decode(reinterpret_cast<const std::uint16_t*>(form.data)[at])
                                  : fp8_decode(form.data[at], form.dtype);
}

/// partial: [blocks, kErrorTerms]. Tiles of 32 x 32, the value through shared memory, so that both the value
/// and a copy in either order are read by rows.
__global__ void __launch_bounds__(kErrorThreads)
    quantization_error_kernel(double* partial, const Matrix value, const FormArgs form, bool columns) {
  wait_for_work_before();
  __shared__ std::uint16_t tile[kErrorTile][kErrorTile + 2];
  __shared__ double buffers[kErrorTerms][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float max = format_max(form.dtype, form.dropped_bits);
  const float half_steps = half_steps_of_max(form.dtype, form.dropped_bits);
  const std::int64_t col_tiles = (value.cols + kErrorTile - 1) / kErrorTile;
  const std::int64_t tiles = (value.rows + kErrorTile - 1) / kErrorTile * col_tiles;
  double sums[kErrorTerms] = {};
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t row0 = t / col_tiles * kErrorTile, col0 = t % col_tiles * kErrorTile;
    __syncthreads();
    for (int r = warp; r < kErrorTile; r += kErrorThreads / kWarp)
      if (row0 + r < value.rows && col0 + lane < value.cols)
        tile[r][lane] = value.data[(row0 + r) * value.pitch + col0 + lane];
    __syncthreads();
    for (int r = warp; r < kErrorTile; r += kErrorThreads / kWarp) {
      const std::int64_t row = (columns ? col0 : row0) + r, k = (columns ? row0 : col0) + lane;
      if (row >= form.rows || k >= form.k) continue;
      const float v = bf16_decode(columns ? tile[lane][r] : tile[r][lane]);
      const float code = element(form, row * form.k + k);
      const float q = code * dequantizing(form.format(), form.scale, form.rows, form.k, row, k);
      add_error(sums, v, q, fabsf(code) == max, half_steps);
    }
  }
  leave_sums(partial, sums, buffers);
}

/// The same for an FP4 copy; x [rows, k] is the source of its codes. A thread has 16 elements of one block.
__global__ void __launch_bounds__(kErrorThreads)
    fp4_error_kernel(double* partial, const std::uint16_t* x, const std::uint8_t* codes, const void* scales,
                     const float* amax, const QuantFormat format, std::int64_t rows, std::int64_t k) {
  wait_for_work_before();
  constexpr int kChunk = 16;
  __shared__ double buffers[kErrorTerms][kWarp];
  const float factor = fp4_tensor_factor(format, amax ? *amax : 0.0f);
  const float half_steps = half_steps_of_max(DType::e2m1);
  double sums[kErrorTerms] = {};
  const std::int64_t chunks = rows * (k / kChunk), stride = std::int64_t{gridDim.x} * kErrorThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kErrorThreads + threadIdx.x; i < chunks; i += stride) {
    const std::int64_t first = i * kChunk;
    const float scale = dequantizing(format, scales, rows, k, first / k, first % k);
    for (int j = 0; j < kChunk; ++j) {
      const auto code = static_cast<std::uint8_t>(codes[(first + j) / 2] >> (4 * (j % 2)) & 0xF);
      add_error(sums, bf16_decode(x[first + j]), e2m1_decode(code) * scale * factor, (code & 7) == 7,
                half_steps);
    }
  }
  leave_sums(partial, sums, buffers);
}

/// Warp i sums term i over the blocks.
__global__ void __launch_bounds__(kErrorTerms* kWarp)
    quantization_error_total(float* out, const double* partial, int blocks) {
  wait_for_work_before();
  const int term = threadIdx.x / kWarp;
  double sum = 0;
  for (int b = threadIdx.x % kWarp; b < blocks; b += kWarp) sum += partial[b * kErrorTerms + term];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) out[term] = static_cast<float>(sum);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_quantization_error(const ops::QuantizationError& op) {
  using namespace cuda;
  const int blocks = 4 * sm_count();
  const std::size_t partial_bytes = blocks * kErrorTerms * sizeof(double);
  const bool fp4 = is_fp4(op.form);
  const std::size_t matrix_bytes = fp4 ? prepared_bytes(op.value) : 0;
  auto* matrix_scratch = static_cast<std::byte*>(scratch(matrix_bytes + partial_bytes));
  auto* partial = reinterpret_cast<double*>(matrix_scratch + matrix_bytes);
  if (fp4) {
    const std::uint16_t* x =
        prepared_fp4(*this, op.form.format, op.value, op.random, op.columns, matrix_scratch);
    fp4_error_kernel<<<blocks, kErrorThreads, 0, stream()>>>(
        partial, x, op.form.data.as<std::uint8_t>(), op.form.scale.data,
        op.form.amax.empty() ? nullptr : op.form.amax.as<float>(), op.form.format, op.form.data.rows,
        op.form.data.cols);
  } else {
    quantization_error_kernel<<<blocks, kErrorThreads, 0, stream()>>>(partial, matrix(op.value),
                                                                      read_form(op.form), op.columns);
  }
  quantization_error_total<<<1, kErrorTerms * kWarp, 0, stream()>>>(op.out.as<float>(), partial, blocks);
  launched("quantization_error");
}

}  // namespace precbench
