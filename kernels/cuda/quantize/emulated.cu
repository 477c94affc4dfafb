// Quantized copies in formats that no GPU multiplies, from the BF16 value: grids, elements under scales with a
// mantissa, and elements held in BF16 (e5m3, e4m4, e3m4, e3m3). Equal to the CPU device's bit for bit.
//
// A thread block processes one scaling scope, or a row if the scope is the tensor. It reads the scope twice,
// for the amax and for the cast, one element at a time and for a columnwise copy across the value's rows.
// Speed does not matter.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/custom_format.cuh"
#include "kernels/cuda/quantize/gemm_operands.cuh"

namespace precbench::cuda {
namespace {

constexpr int kEmulatedThreads = 256;

struct EmulatedArgs {
  CustomCopy operand;
  const std::uint16_t* value;
  bool columns;               // the copy is the value's transpose
  const std::uint32_t* amax;  // of the tensor that is one scope; null: scopes compute theirs
  std::int64_t tall, wide;    // of a scope, clipped at the end of the copy
  bool delayed;
  std::uint8_t margin;  // of delayed scaling
  // Random numbers of elements (RandomStream).
  bool stochastic;
  const std::uint32_t* word;  // null: 0
  std::uint32_t stream;
  RowMap rows;

  __device__ float load(std::int64_t row, std::int64_t k) const {
    return bf16_decode(value[columns ? k * operand.rows + row : row * operand.k + k]);
  }

  __device__ CustomScale make_scale(float amax_of_scope) const {
    if (delayed) {
      const float multiply = delayed_scale(amax_of_scope, operand.rule.max, margin, operand.rule.type);
      return {multiply, 1.0f / multiply, 0};
    }
    return custom_scale(operand.rule, amax_of_scope, operand.tensor_amax ? *operand.tensor_amax : 0.0f);
  }

  __device__ void store_scale(std::int64_t at, const CustomScale& scale) const {
    if (operand.rule.type == ScaleType::f32 || operand.rule.type == ScaleType::f32_pow2)
      static_cast<float*>(operand.scales)[at] = scale.dequantize;
    else
      static_cast<std::uint8_t*>(operand.scales)[at] = scale.byte;
  }

  __device__ std::uint8_t grid_code(const Grid& grid, float x, std::uint64_t seed, std::int64_t row,
                                    std::int64_t k) const {
    if (!stochastic) return grid_encode(grid, x);
    const std::uint64_t place = place_of_element(rows, columns ? operand.rows : operand.k, columns, row, k);
    return grid_encode_stochastic(grid, x, random_bits(seed, place));
  }

  /// Stores the code of x, an element times its scale.
  __device__ void store(const Grid& grid, float x, std::uint64_t seed, std::int64_t row,
                        std::int64_t k) const {
    const std::int64_t at = row * operand.k + k;
    if (held_in_bf16(operand.dtype)) {
      static_cast<std::uint16_t*>(operand.data)[at] = encode_in_bf16(x, operand.dtype);
      return;
    }
    auto* codes = static_cast<std::uint8_t*>(operand.data);
    if (operand.dtype == DType::grid) {
      codes[at] = grid_code(grid, x, seed, row, k);
      return;
    }
    const float rounded =
        operand.dropped_bits ? round_to_narrower(x, operand.dtype, operand.dropped_bits) : x;
    codes[at] = operand.dtype == DType::e4m3 ? e4m3_encode(rounded) : e5m2_encode(rounded);
  }
};

/// Raises the amax of the value's elements, as FP32 bits.
__global__ void __launch_bounds__(kEmulatedThreads)
    tensor_amax_kernel(std::uint32_t* out, const std::uint16_t* value, std::int64_t count) {
  wait_for_work_before();
  __shared__ std::uint32_t buffer[kWarp];
  std::uint32_t largest = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kEmulatedThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kEmulatedThreads)
    largest = max(largest, static_cast<std::uint32_t>(abs_bits(bf16_decode(value[i]))));
  largest = block_max(largest, buffer);
  if (threadIdx.x == 0) atomicMax(out, largest);
}

__global__ void __launch_bounds__(kEmulatedThreads)
    cast_emulated_kernel(const EmulatedArgs a, const __grid_constant__ Grid grid) {
  wait_for_work_before();
  __shared__ std::uint32_t buffer[kWarp];
  const CustomCopy& operand = a.operand;
  const std::int64_t across = detail::blocks_of(operand.k, a.wide), kb = blockIdx.x % across;
  const std::int64_t row0 = blockIdx.x / across * a.tall, row_end = min(row0 + a.tall, operand.rows);
  const std::int64_t k0 = kb * a.wide, wide = min(a.wide, operand.k - k0), elements = (row_end - row0) * wide;
  std::uint32_t amax = 0;
  if (a.amax) {
    amax = *a.amax;
  } else {
    for (std::int64_t i = threadIdx.x; i < elements; i += blockDim.x)
      amax = max(amax, static_cast<std::uint32_t>(abs_bits(a.load(row0 + i / wide, k0 + i % wide))));
    amax = block_max(amax, buffer);
  }
  const CustomScale scale = a.make_scale(__uint_as_float(amax));
  // A 32x32 or 16x16 block stores its scale for each row; a 128x128 block and a tensor store it once.
  const bool by_row =
      operand.granularity == Granularity::block_32x32 || operand.granularity == Granularity::block_16x16;
  const std::int64_t row = row0 + (by_row ? threadIdx.x : 0);
  if (by_row ? row < row_end : threadIdx.x == 0 && (!a.amax || blockIdx.x == 0))
    a.store_scale(scale_index(operand.granularity, operand.rows, operand.k, row, kb), scale);
  const std::uint64_t seed = a.stochastic ? stream_seed(a.word ? *a.word : 0, a.stream) : 0;
  if (operand.dtype == DType::grid4) {  // rows have an even number of codes, two in a byte
    for (std::int64_t i = 2 * threadIdx.x; i < elements; i += 2 * blockDim.x) {
      const std::int64_t r = row0 + i / wide, k = k0 + i % wide;
      const auto code = [&](std::int64_t at) {
        return a.grid_code(grid, a.load(r, at) * scale.multiply, seed, r, at);
      };
      static_cast<std::uint8_t*>(operand.data)[(r * operand.k + k) / 2] =
          static_cast<std::uint8_t>(code(k) | code(k + 1) << 4);
    }
    return;
  }
  for (std::int64_t i = threadIdx.x; i < elements; i += blockDim.x) {
    const std::int64_t r = row0 + i / wide, k = k0 + i % wide;
    a.store(grid, a.load(r, k) * scale.multiply, seed, r, k);
  }
}

void quantize_copy(CudaDevice& device, const GemmOperand& operand, const QuantizedTensor& x, bool columns) {
  if (operand.empty() || !always_emulated(operand.format)) return;
  const QuantFormat& format = operand.format;
  check_whole_bytes(format, operand.data.cols);
  const cudaStream_t stream = device.stream();
  const std::int64_t block = block_length(format.granularity), tall = block_rows(format.granularity);
  const std::int64_t rows = operand.data.rows, k = operand.data.cols, wide = block ? block : k;
  const Tensor& amax = x.amax_in.empty() ? x.amax_out : x.amax_in;
  if (!operand.amax.empty()) {
    PRECBENCH_CHECK(cudaMemsetAsync(operand.amax.data, 0, operand.amax.bytes(), stream));
    const auto grid = static_cast<unsigned>(
        std::min<std::int64_t>(detail::blocks_of(rows * k, kEmulatedThreads), 4 * device.sm_count()));
    tensor_amax_kernel<<<grid, kEmulatedThreads, 0, stream>>>(operand.amax.as<std::uint32_t>(),
                                                          x.value.as<std::uint16_t>(), rows * k);
  }
  PRECBENCH_CHECK(cudaMemsetAsync(operand.scale.data, 0, operand.scale.bytes(), stream));  // its padding
  const auto scopes = static_cast<unsigned>(detail::blocks_of(rows, tall) * detail::blocks_of(k, wide));
  cast_emulated_kernel<<<scopes, tall * wide <= kWarp ? kWarp : kEmulatedThreads, 0, stream>>>(
      {CustomCopy(operand), x.value.as<std::uint16_t>(), columns,
       format.granularity == Granularity::tensor ? amax.as<std::uint32_t>() : nullptr, tall, wide,
       format.delayed(), format.history.margin, format.element_rounding == ElementRounding::stochastic,
       x.random.word.empty() ? nullptr : x.random.word.as<std::uint32_t>(),
       x.random.stream + (columns ? 1u : 0u), x.random.rows},
      grid_argument(format));
}

}  // namespace

void quantize_emulated(CudaDevice& device, const QuantizedTensor& x) {
  quantize_copy(device, x.rowwise, x, false);
  quantize_copy(device, x.columnwise, x, true);
}

}  // namespace precbench::cuda
