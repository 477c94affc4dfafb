// The forms of stacked weights, each expert by itself, all experts in one launch. Rowwise forms with scales of rows or
// blocks are those of the whole stack, and so the dense engine's. The others are cast here, tile by tile: columnwise forms,
// in which an expert's transpose follows the last one's, and those with one scale for an expert.
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/quantize/produce.cuh"

namespace precbench {
namespace cuda {
namespace {

/// A stack of [N, k] and the form that is made of it.
struct StackArgs {
  Matrix value;   // [E * N, k]
  FormArgs form;  // [E * N, k] or, of columns, [E * k, N]; amax: of its rows, or one of each expert
  std::int64_t N;
  int row_tiles, col_tiles;  // of an expert
  bool columns;
};

struct StackTile {
  int expert;
  std::int64_t row0, col0;  // within the expert
};

__device__ inline StackTile tile_of(const StackArgs& a) {
  const int tiles = a.row_tiles * a.col_tiles, tile = static_cast<int>(blockIdx.x) % tiles;
  return {static_cast<int>(blockIdx.x) / tiles, std::int64_t{tile / a.col_tiles} * kTile,
          std::int64_t{tile % a.col_tiles} * kTile};
}

__device__ inline void load_square(Bf16x8 (&square)[kSquare], const StackArgs& a, const StackTile& tile) {
  const ThreadPlace at;
#pragma unroll
  for (int i = 0; i < kSquare; ++i)
    square[i] = load<true>(a.value, tile.expert * a.N + tile.row0 + at.row() + i, tile.col0 + at.col());
}

/// Raises the form's amaxes from zero: of an expert, or of each of its columns.
__global__ void __launch_bounds__(kTileThreads, 4)
    amax_stack_kernel(const StackArgs a, std::uint32_t* amaxes) {
  __shared__ alignas(16) std::uint16_t col_max[kTileWarps][kTile];
  const StackTile tile = tile_of(a);
  const ThreadPlace at;
  Bf16x8 square[kSquare], cols;
  load_square(square, a, tile);
  warp_col_maxima(cols, square);
  if (a.form.granularity == Granularity::tensor) {
    const std::uint32_t most = warp_max(cols);
    if (threadIdx.x % kWarp == 0) atomicMax(amaxes + tile.expert, most << 16);
    return;
  }
  if (at.half == 0) store_vector(&col_max[at.warp][at.col()], cols);
  __syncthreads();
  if (threadIdx.x >= kTile) return;
  std::uint32_t most = 0;
#pragma unroll
  for (int w = 0; w < kTileWarps; ++w) most = max(most, static_cast<std::uint32_t>(col_max[w][threadIdx.x]));
  atomicMax(amaxes + tile.expert * a.value.cols + tile.col0 + threadIdx.x, most << 16);
}

__global__ void __launch_bounds__(kTileThreads, 3) cast_stack_kernel(const StackArgs a) {
  __shared__ TileShared shared;
  const StackTile tile = tile_of(a);
  Bf16x8 square[kSquare];
  load_square(square, a, tile);
  TileOutput out;
  FormArgs& form = a.columns ? out.columnwise : out.rowwise;
  form = a.form;
  std::int64_t first = tile.expert * (a.columns ? a.value.cols : a.N);  // the expert's first row of the form
  if (form.granularity == Granularity::tensor) {  // its scale is stored with a form's first element
    form.data += first * form.k;
    form.scale = static_cast<float*>(form.scale) + tile.expert;
    first = 0;
    out.tensor.parts =
        const_cast<std::uint32_t*>(reinterpret_cast<const std::uint32_t*>(form.amax)) + tile.expert;
    out.tensor.count = 1;
  }
  if (a.columns)
    cast_tile<true>(square, out, tile.row0, first + tile.col0, shared);
  else
    cast_tile<true>(square, out, first + tile.row0, tile.col0, shared);
}

void cast_stack(CudaDevice& device, const Tensor& value, const GemmOperand& form, bool columns,
                std::int64_t experts) {
  StackArgs args{};
  args.value = matrix(value);
  args.N = value.rows / experts;
  args.columns = columns;
  args.row_tiles = static_cast<int>(args.N / kTile);
  args.col_tiles = static_cast<int>(value.cols / kTile);
  if (args.N % kTile != 0 || value.cols % kTile != 0 || !args.value.vectors)
    throw Unsupported("the CUDA device quantizes experts of multiples of 128 rows and columns, not of " +
                      std::to_string(args.N) + " x " + std::to_string(value.cols));
  args.form = form_args(form, device.stream());
  const auto blocks = static_cast<unsigned>(experts * args.row_tiles * args.col_tiles);
  if (!args.form.in_blocks()) {
    const std::size_t bytes =
        sizeof(float) * (form.format.granularity == Granularity::tensor ? experts : form.data.rows);
    args.form.amax = static_cast<const float*>(device.scratch(bytes));
    auto* amaxes = const_cast<std::uint32_t*>(reinterpret_cast<const std::uint32_t*>(args.form.amax));
    PRECBENCH_CHECK(cudaMemsetAsync(amaxes, 0, bytes, device.stream()));
    amax_stack_kernel<<<blocks, kTileThreads, 0, device.stream()>>>(args, amaxes);
  }
  cast_stack_kernel<<<blocks, kTileThreads, 0, device.stream()>>>(args);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_quantize_experts(const ops::QuantizeExperts& op) {
  using namespace cuda;
  if (wanted(op.w.rowwise)) {
    if (op.w.rowwise.format.granularity == Granularity::tensor)
      cast_stack(*this, op.w.value, op.w.rowwise, false, op.experts);
    else
      do_quantize({{.value = op.w.value, .rowwise = op.w.rowwise}});
  }
  if (wanted(op.w.columnwise)) cast_stack(*this, op.w.value, op.w.columnwise, true, op.experts);
  launched("quantize_experts");
}

}  // namespace precbench
