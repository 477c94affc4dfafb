// Quantized copies held in BF16 (e5m3, e4m4, e3m4, e3m3) from the BF16 value; equal to cpu/quantize.cpp bit
// for bit.
//
// A thread block processes one scaling scope, or a row if the scope is the tensor. It reads the scope twice,
// for the amax and for the cast, one element at a time and for a columnwise copy across the value's rows. No
// GPU multiplies these formats, so speed does not matter.
#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/gemm_operands.cuh"

namespace precbench::cuda {
namespace {

constexpr int kMostThreads = 256;

struct HeldArgs {
  const std::uint16_t* value;
  bool columns;  // the copy is the value's transpose
  std::uint16_t* out;
  CopyArgs copy;
  const std::uint32_t* amax;  // of the tensor; null: scopes compute theirs
  std::int64_t tall, wide;    // of a scope, clipped at the end of the copy

  __device__ float load(std::int64_t row, std::int64_t k) const {
    return bf16_decode(value[columns ? k * copy.rows + row : row * copy.k + k]);
  }
};

__global__ void __launch_bounds__(kMostThreads) cast_held_kernel(const HeldArgs a) {
  wait_for_work_before();
  __shared__ std::uint32_t buffer[kWarp];
  const std::int64_t across = detail::blocks_of(a.copy.k, a.wide), kb = blockIdx.x % across;
  const std::int64_t row0 = blockIdx.x / across * a.tall, row_end = min(row0 + a.tall, a.copy.rows);
  const std::int64_t k0 = kb * a.wide, wide = min(a.wide, a.copy.k - k0), elements = (row_end - row0) * wide;
  std::uint32_t amax = 0;
  if (a.amax) {
    amax = *a.amax;
  } else {
    for (std::int64_t i = threadIdx.x; i < elements; i += blockDim.x)
      amax = max(amax, static_cast<std::uint32_t>(abs_bits(a.load(row0 + i / wide, k0 + i % wide))));
    amax = block_max(amax, buffer);
  }
  // A 32x32 block stores its scale for each row; a 128x128 block and a tensor store it once.
  const bool by_row = a.copy.granularity == Granularity::block_32x32;
  const std::int64_t row = row0 + (by_row ? threadIdx.x : 0);
  const bool store = by_row ? row < row_end : threadIdx.x == 0 && (!a.amax || blockIdx.x == 0);
  const std::int64_t at =
      store ? scale_index(a.copy.granularity, a.copy.rows, a.copy.k, row, kb) : std::int64_t{0};
  const float scale = make_scale(a.copy, amax, at, store);
  for (std::int64_t i = threadIdx.x; i < elements; i += blockDim.x) {
    const std::int64_t r = row0 + i / wide, k = k0 + i % wide;
    a.out[r * a.copy.k + k] = encode_in_bf16(a.load(r, k) * scale, a.copy.dtype);
  }
}

void quantize_copy(CudaDevice& device, const GemmOperand& operand, const QuantizedTensor& x, bool columns) {
  if (operand.empty() || !held_in_bf16(operand.format.dtype)) return;
  const CopyArgs args = copy_args(operand);
  const std::int64_t block = block_length(args.granularity), tall = block_rows(args.granularity);
  const std::int64_t wide = block ? block : args.k;
  const Tensor& amax = x.amax_in.empty() ? x.amax_out : x.amax_in;
  const bool of_tensor = args.granularity == Granularity::tensor;
  PRECBENCH_CHECK(
      cudaMemsetAsync(operand.scale.data, 0, operand.scale.bytes(), device.stream()));  // its padding
  const auto scopes =
      static_cast<unsigned>(detail::blocks_of(args.rows, tall) * detail::blocks_of(args.k, wide));
  cast_held_kernel<<<scopes, tall * wide <= kWarp ? kWarp : kMostThreads, 0, device.stream()>>>(
      {x.value.as<std::uint16_t>(), columns, operand.data.as<std::uint16_t>(), args,
       of_tensor ? amax.as<std::uint32_t>() : nullptr, tall, wide});
}

}  // namespace

void quantize_held_in_bf16(CudaDevice& device, const QuantizedTensor& x) {
  quantize_copy(device, x.rowwise, x, false);
  quantize_copy(device, x.columnwise, x, true);
}

}  // namespace precbench::cuda
