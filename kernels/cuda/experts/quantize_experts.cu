// The forms of stacked weights, each expert by itself, all experts in one pass of the dense engine. Rowwise forms are those
// of the whole stack. Columnwise ones, in which an expert's transpose follows the last one's, are those of a matrix that has
// the experts side by side. Where one scale belongs to an expert, a pass before finds the amaxes, and the forms are cast as
// if every row of theirs had a scale.
#include "kernels/cuda/elementwise/elements.cuh"
#include "kernels/cuda/quantize/produce.cuh"

namespace precbench {
namespace cuda {
namespace {

/// [N, E * k] of a stack [E * N, k]; with one expert the matrix itself.
struct StackSource {
  static constexpr int kOutputs = 1, kBatch = 8;
  struct Column {};
  using Raw = Bf16x8;
  Matrix stack;
  std::int64_t rows, width, cols;

  StackSource(const Tensor& value, std::int64_t experts)
      : stack(matrix(value)), rows(value.rows / experts), width(value.cols), cols(value.cols * experts) {}
  bool vectors() const { return stack.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const std::int64_t expert = col / width;
    if (!kFull && (row >= rows || col >= cols)) return {};
    return load<kFull>(stack, expert * rows + row, col - expert * width);
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    out[0] = raw;
  }
};

constexpr int kAmaxVectors = 16;  // of eight elements, that a thread reads

/// Raises amaxes from zero: of each expert, blockIdx.y.
__global__ void __launch_bounds__(kElementThreads)
    amax_experts_kernel(std::uint32_t* amaxes, const std::uint16_t* stack, std::int64_t size, bool vectors) {
  __shared__ std::uint32_t buffer[kWarp];
  const std::uint16_t* const expert = stack + blockIdx.y * size;
  std::uint32_t largest = 0;
  for_elements(expert, size, vectors, [&](const float(&v)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, __float_as_uint(v[j]) & 0x7FFFFFFFu);
  });
  largest = block_max(largest, buffer);
  if (threadIdx.x == 0) atomicMax(amaxes + blockIdx.y, largest);
}

/// Of each row of a form that has so many for an expert.
__global__ void __launch_bounds__(kElementThreads)
    spread_amaxes_kernel(float* of_rows, const float* amaxes, std::int64_t rows,
                         std::int64_t rows_of_expert) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (row < rows) of_rows[row] = amaxes[row / rows_of_expert];
}

__global__ void __launch_bounds__(kElementThreads)
    collect_scales_kernel(float* scales, const float* of_rows, std::int64_t experts,
                          std::int64_t rows_of_expert) {
  const std::int64_t expert = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (expert < experts) scales[expert] = of_rows[expert * rows_of_expert];
}

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>((threads + kElementThreads - 1) / kElementThreads);
}

/// A form with one scale for each expert. `source`: what the engine reads.
void cast_with_amaxes(CudaDevice& device, const Tensor& value, const GemmOperand& form, bool columns,
                      const StackSource& source, std::int64_t experts) {
  const std::int64_t rows = form.data.rows, rows_of_expert = rows / experts, size = value.size() / experts;
  auto* const amaxes = static_cast<float*>(device.scratch((experts + 2 * rows) * sizeof(float)));
  float *const amaxes_of_rows = amaxes + experts, *const scales_of_rows = amaxes_of_rows + rows;
  PRECBENCH_CHECK(cudaMemsetAsync(amaxes, 0, experts * sizeof(float), device.stream()));
  const dim3 grid(static_cast<unsigned>((size + kElementThreads * 8 * kAmaxVectors - 1) /
                                        (kElementThreads * 8 * kAmaxVectors)),
                  static_cast<unsigned>(experts));
  amax_experts_kernel<<<grid, kElementThreads, 0, device.stream()>>>(reinterpret_cast<std::uint32_t*>(amaxes),
                                                                     value.as<std::uint16_t>(), size,
                                                                     aligned(value) && size % 8 == 0);
  spread_amaxes_kernel<<<blocks_for(rows), kElementThreads, 0, device.stream()>>>(amaxes_of_rows, amaxes,
                                                                                  rows, rows_of_expert);
  TileOutput output;
  FormArgs& args = columns ? output.columnwise : output.rowwise;
  args = read_form(form);
  args.granularity = Granularity::row;
  args.amax = amaxes_of_rows;
  args.scale = scales_of_rows;
  const int col_tiles = static_cast<int>((source.cols + kTile - 1) / kTile);
  const int tiles = static_cast<int>((source.rows + kTile - 1) / kTile) * col_tiles;
  const bool full = source.vectors() && source.rows % kTile == 0 && source.cols % kTile == 0;
  const auto kernel = full ? cast_tiles<StackSource, true> : cast_tiles<StackSource, false>;
  kernel<<<tiles, kTileThreads, 0, device.stream()>>>(source, TileOutputs<1>{{output}}, col_tiles, false);
  collect_scales_kernel<<<blocks_for(experts), kElementThreads, 0, device.stream()>>>(
      form.scale.as<float>(), scales_of_rows, experts, rows_of_expert);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_quantize_experts(const ops::QuantizeExperts& op) {
  using namespace cuda;
  for (const bool columns : {false, true}) {
    const GemmOperand& form = columns ? op.w.columnwise : op.w.rowwise;
    if (!wanted(form)) continue;
    const StackSource source(op.w.value, columns ? op.experts : 1);
    if (form.format.granularity == Granularity::tensor) {
      cast_with_amaxes(*this, op.w.value, form, columns, source, op.experts);
      continue;
    }
    QuantizedTensor w = op.w;
    w.rowwise = w.columnwise = {};
    (columns ? w.columnwise : w.rowwise) = form;
    void* amaxes = scratch(amax_scratch_bytes(*this, w));
    produce(*this, source, TileOutputs<1>{{tile_output(*this, w, false, amaxes)}});
  }
  launched("quantize_experts");
}

}  // namespace precbench
