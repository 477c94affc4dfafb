// Quantizes stacked weights, each expert separately. Both copies come from one read of the weights, after an
// earlier read for amaxes if a scale belongs to a row, a column or an expert whose amax is unknown.
//
// The dense engine (produce.cuh) handles the other cases: only rows with a scale each, which it also makes
// from one read; and formats whose scales span experts, as one stack or with the experts side by side.
#include <type_traits>
#include <utility>

#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/produce.cuh"

namespace precbench {
namespace cuda {
namespace {

/// [N, E * k] of a stack [E * N, k]; with one expert the matrix itself.
struct StackSource : PlainSource {
  Matrix stack;
  std::int64_t rows, width, cols;

  StackSource(const Tensor& value, std::int64_t experts)
      : stack(matrix(value)), rows(value.rows / experts), width(value.cols), cols(value.cols * experts) {}
  bool vectors() const { return stack.vectors; }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const std::int64_t expert = col / width, within = col - expert * width;
    if (!kFull && (row >= rows || col >= cols)) return {};
    Raw raw = load<kFull>(stack, expert * rows + row, within);
    if constexpr (!kFull) {
      // Columns of the next expert; not needed if vectors divide an expert's columns.
      for (int j = static_cast<int>(width - within); !stack.vectors && j < 8 && col + j < cols; ++j) {
        const std::int64_t other = (col + j) / width;
        const std::uint32_t bits = stack.data[(other * rows + row) * stack.pitch + col + j - other * width];
        raw.pair[j / 2] |= bits << (16 * (j % 2));
      }
    }
    return raw;
  }
};

/// Consecutive experts: the first one, and the copies of the first.
struct Stack {
  Matrix expert;
  TileOutput output;
  bool known;  ///< the experts' amaxes are only read
  int col_tiles;
};

__device__ inline void shift(CopyArgs& copy, std::int32_t*& raised, int experts) {
  if (!copy.data) return;
  copy.data += experts * copy.rows * copy.k;
  const std::int64_t scales = experts * scale_count(copy.granularity, copy.rows, copy.k);
  copy.scale = static_cast<std::byte*>(copy.scale) + scales * (copy.scale_type == ScaleType::ue8m0 ? 1 : 4);
  if (!raised) return;
  raised += experts * copy.rows;
  copy.amax += experts * copy.rows;
}

/// A block's tile of expert blockIdx.y; `number`: the tile's.
template <bool kFull>
struct StackTile {
  Matrix expert;
  TileOutput output;
  std::int64_t row0, col0;
  Bf16x8 square[kSquare];

  __device__ StackTile(const Stack& stack, int which, int number)
      : expert(stack.expert),
        output(stack.output),
        row0(number / stack.col_tiles * kTile),
        col0(number % stack.col_tiles * kTile) {
    const ThreadPlace at;
    expert.data += which * expert.rows * expert.pitch;
#pragma unroll
    for (int i = 0; i < kSquare; ++i) square[i] = load<kFull>(expert, row0 + at.row() + i, col0 + at.col());
    shift(output.rowwise, output.row_amax, which);
    shift(output.columnwise, output.col_amax, which);
    if (output.tensor.parts) output.tensor.parts += which;
    if (output.tensor.raised) output.tensor.raised += which;
  }
};

/// Raises the amaxes of rows, columns and experts from zero.
template <bool kFull>
__global__ void __launch_bounds__(kTileThreads, 4) amax_experts(const __grid_constant__ Stack stack) {
  wait_for_work_before();
  __shared__ alignas(16) std::uint16_t row_max[kTile], col_max[kTileWarps][kTile];
  const StackTile<kFull> tile(stack, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  const TileOutput& out = tile.output;
  const ThreadPlace at;
  std::uint32_t rows[4];
  row_maxima(rows, tile.square);
#pragma unroll
  for (std::uint32_t& two : rows)
#pragma unroll
    for (int step = 1; step < 16; step *= 2) two = max_of_pairs(two, __shfl_xor_sync(kAllLanes, two, step));
  if (at.lane == 0) store_vector(&row_max[at.row()], {{rows[0], rows[1], rows[2], rows[3]}});
  Bf16x8 cols;
  warp_col_maxima(cols, tile.square);
  if (at.half == 0) store_vector(&col_max[at.warp][at.col()], cols);
  __syncthreads();
  const int t = threadIdx.x % kTile;
  if (threadIdx.x < kTile) {
    const std::uint32_t of_row = row_max[t];
    if (out.row_amax && (kFull || tile.row0 + t < tile.expert.rows))
      atomicMax(out.row_amax + tile.row0 + t, static_cast<std::int32_t>(of_row << 16));
    if (out.tensor.parts && !stack.known) {
      const std::uint32_t of_warp = __reduce_max_sync(kAllLanes, of_row);
      if (threadIdx.x % kWarp == 0) atomicMax(out.tensor.parts, of_warp << 16);
    }
  } else if (out.col_amax && (kFull || tile.col0 + t < tile.expert.cols)) {
    std::uint32_t of_column = 0;
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w)
      of_column = max(of_column, static_cast<std::uint32_t>(col_max[w][t]));
    atomicMax(out.col_amax + tile.col0 + t, static_cast<std::int32_t>(of_column << 16));
  }
}

/// In reverse order of tiles: L2 still holds what an amax pass read last.
template <TileCase kCase>
__global__ void __launch_bounds__(kTileThreads, 3) cast_experts(const __grid_constant__ Stack stack) {
  wait_for_work_before();
  __shared__ TileShared shared;
  StackTile<kCase != TileCase::any> tile(stack, static_cast<int>(gridDim.y - 1 - blockIdx.y),
                                         static_cast<int>(gridDim.x - 1 - blockIdx.x));
  cast_tile<kCase, false>(tile.square, tile.output, tile.row0, tile.col0, shared);
}

/// Returns true if each expert's part of a copy and of its scales is contiguous.
bool apart(const GemmOperand& operand, std::int64_t experts) {
  switch (operand.format.granularity) {
    case Granularity::tensor:
    case Granularity::row:
    case Granularity::block_128x128:
      return scale_dtype(operand.format) == DType::f32;
    case Granularity::block_1x32:
      return operand.data.rows / experts % kTile == 0;
    default:
      return false;
  }
}

bool of_tensor(const CopyArgs& copy) { return copy.data && copy.granularity == Granularity::tensor; }

/// Makes the copies that are separate per expert, and the experts' amaxes.
void quantize_stack(CudaDevice& device, const QuantizedTensor& w, std::int64_t E) {
  const std::int64_t N = w.value.rows / E, k = w.value.cols;
  Stack stack{.expert = matrix(w.value),
              .output = {},
              .known = !w.amax_in.empty(),
              .col_tiles = static_cast<int>((k + kTile - 1) / kTile)};
  stack.expert.rows = N;
  TileOutput& out = stack.output;
  const auto arguments = [&](const GemmOperand& operand) {
    if (!wanted(operand)) return CopyArgs{};
    CopyArgs args = operand.format.granularity == Granularity::tensor
                        ? copy_args(operand)
                        : requested_copy(operand, device.stream());
    args.rows /= E;
    return args;
  };
  out.rowwise = arguments(w.rowwise);
  out.columnwise = arguments(w.columnwise);
  const std::int64_t rows = scaled_by_row(w.rowwise) ? E * N : 0,
                     columns = scaled_by_row(w.columnwise) ? E * k : 0;
  const bool by_expert = of_tensor(out.rowwise) || of_tensor(out.columnwise),
             cast = wanted(w.rowwise) || wanted(w.columnwise);
  const std::int64_t experts = by_expert && !stack.known && w.amax_out.empty() ? E : 0;
  const auto bytes = static_cast<std::size_t>(rows + columns + experts) * sizeof(float);
  auto* amaxes = static_cast<std::int32_t*>(device.scratch(bytes));
  if (rows > 0) out.row_amax = amaxes, out.rowwise.amax = reinterpret_cast<float*>(amaxes);
  amaxes += rows;
  if (columns > 0) out.col_amax = amaxes, out.columnwise.amax = reinterpret_cast<float*>(amaxes);
  TensorAmax& tensor = out.tensor;
  if (experts > 0) tensor.parts = reinterpret_cast<std::uint32_t*>(amaxes + columns);
  if (stack.known && by_expert) tensor.parts = w.amax_in.as<std::uint32_t>();
  if (!w.amax_out.empty()) (stack.known ? tensor.raised : tensor.parts) = w.amax_out.as<std::uint32_t>();
  if (tensor.parts) tensor.count = 1;
  const bool finds = !stack.known && !w.amax_out.empty();
  const dim3 grid(static_cast<unsigned>((N + kTile - 1) / kTile * stack.col_tiles), static_cast<unsigned>(E));
  const bool whole_tiles = stack.expert.vectors && N % kTile == 0 && k % kTile == 0;
  if (bytes > 0) PRECBENCH_CHECK(cudaMemsetAsync(amaxes - rows, 0, bytes, device.stream()));
  if (finds) PRECBENCH_CHECK(cudaMemsetAsync(w.amax_out.data, 0, w.amax_out.bytes(), device.stream()));
  if (bytes > 0 || finds) {
    const auto kernel = whole_tiles ? amax_experts<true> : amax_experts<false>;
    kernel<<<grid, kTileThreads, 0, device.stream()>>>(stack);
  }
  if (!cast && !tensor.raised) return;
  with_tile_case(tile_case({&out, 1}, whole_tiles), [&](auto tile_case) {
    cast_experts<tile_case><<<grid, kTileThreads, 0, device.stream()>>>(stack);
  });
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_quantize_experts(const ops::QuantizeExperts& op) {
  using namespace cuda;
  QuantizedTensor together = op.w;
  for (const bool columns : {false, true}) {
    GemmOperand& operand = columns ? together.columnwise : together.rowwise;
    if (!wanted(operand)) continue;
    const bool rows_alone = !columns && scaled_by_row(operand) && !wanted(op.w.columnwise);
    if (apart(operand, op.experts) && !rows_alone) continue;
    const StackSource source(op.w.value, columns ? op.experts : 1);
    QuantizedTensor w = op.w;
    w.rowwise = w.columnwise = {};
    w.amax_in = w.amax_out = {};
    (columns ? w.columnwise : w.rowwise) = std::exchange(operand, {});
    void* amaxes = scratch(amax_scratch_bytes(*this, w));
    produce(*this, source, TileOutputs<1>{{tile_output(*this, w, false, amaxes)}});
  }
  if (wanted(together.rowwise) || wanted(together.columnwise) || !op.w.amax_out.empty())
    quantize_stack(*this, together, op.experts);
  launched("quantize_experts");
}

}  // namespace precbench
