// The forms of stacked weights, each expert by itself, one or both of one launch.
//
// Where a scale belongs to a block, a tile has all that its codes need. Where it belongs to a row, a column or an expert, its
// amax is known when all of the expert is read. So the launch goes over the stack in runs of a few experts: amaxes of a run's
// tiles, then the casts of the run before, which find their tiles in L2, so that memory is read once.
//
//   amaxes of run 0 | amaxes of run 1 | casts of run 0 | amaxes of run 2 | casts of run 1 | ... | casts of the last run
//
// Blocks take these items in their order from a counter. A cast waits until the amaxes of its expert's tiles are there: they
// are earlier items, so that some block has them already, and no block waits for one behind it.
//
// Forms whose blocks of scales do not end with an expert, or have padding, and rows alone with a scale each are made by the
// dense engine (produce.cuh), of the whole stack or of the experts side by side.
#include <algorithm>
#include <utility>

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

constexpr int kRunTiles = 384;  ///< of a run: two runs are in L2 at a time, and what is written

/// The first expert's, and how far the others' are.
struct StackArgs {
  Matrix expert;
  TileOutput output;
  std::uint32_t* amaxes;  ///< of the experts, where a scale belongs to one
  unsigned* done;         ///< tiles of each expert whose amaxes are there; null: no amax is needed
  unsigned* next_item;
  int experts, row_tiles, col_tiles;
  int experts_of_run;
};

struct Item {
  bool cast;
  int tile;  ///< of the stack, expert after expert
};

__device__ inline Item item_at(const StackArgs& a, int index) {
  if (!a.done) return {true, index};
  const int of_expert = a.row_tiles * a.col_tiles, tiles = a.experts * of_expert;
  const int run = min(tiles, a.experts_of_run * of_expert);
  if (index < run) return {false, index};
  const int step = (index - run) / (2 * run) + 1, within = (index - run) % (2 * run);
  if (within < min(run, tiles - step * run)) return {false, step * run + within};
  return {true, index - min(tiles, (step + 1) * run)};
}

/// The forms of one expert of the stack.
__device__ inline TileOutput output_of(const StackArgs& a, int expert) {
  TileOutput out = a.output;
  const auto shift = [&](FormArgs& form, std::int32_t*& raised) {
    if (!form.data) return;
    form.data += expert * form.rows * form.k;
    const std::int64_t scales = scale_count(form.granularity, form.rows, form.k) * expert;
    form.scale = form.scale_type == ScaleType::ue8m0
                     ? static_cast<void*>(static_cast<std::uint8_t*>(form.scale) + scales)
                     : static_cast<void*>(static_cast<float*>(form.scale) + scales);
    if (!raised) return;
    raised += expert * form.rows;
    form.amax += expert * form.rows;
  };
  shift(out.rowwise, out.row_amax);
  shift(out.columnwise, out.col_amax);
  if (a.amaxes) out.tensor = {.parts = a.amaxes + expert, .count = 1};
  return out;
}

/// Raises the amaxes that a tile's elements belong to.
template <bool kFull>
__device__ inline void raise_amaxes(const Bf16x8 (&square)[kSquare], const Matrix& expert,
                                    const TileOutput& out, std::int64_t row0, std::int64_t col0,
                                    TileShared& shared) {
  const ThreadPlace at;
  if (out.row_amax) {
    std::uint32_t rows[4];
    row_maxima(rows, square);
#pragma unroll
    for (std::uint32_t& two : rows)
#pragma unroll
      for (int step = 1; step < 16; step *= 2) two = max_of_pairs(two, __shfl_xor_sync(kAllLanes, two, step));
    if (at.lane == 0) store_vector(&shared.row_max[0][at.row()], {{rows[0], rows[1], rows[2], rows[3]}});
  }
  Bf16x8 cols;
  warp_col_maxima(cols, square);
  if (at.half == 0) store_vector(&shared.col_max[at.warp][at.col()], cols);
  const std::uint32_t all = warp_max(cols);
  if (threadIdx.x % kWarp == 0) shared.warp_max[at.warp] = all;
  __syncthreads();
  const int t = threadIdx.x % kTile;
  if (out.row_amax && threadIdx.x < kTile && (kFull || row0 + t < expert.rows))
    atomicMax(out.row_amax + row0 + t, static_cast<std::int32_t>(shared.row_max[0][t]) << 16);
  if (out.col_amax && threadIdx.x >= kTile && (kFull || col0 + t < expert.cols)) {
    std::uint32_t of_column = 0;
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w)
      of_column = max(of_column, static_cast<std::uint32_t>(shared.col_max[w][t]));
    atomicMax(out.col_amax + col0 + t, static_cast<std::int32_t>(of_column << 16));
  }
  if (out.tensor.parts && threadIdx.x == 0) {
    std::uint32_t of_tile = 0;
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) of_tile = max(of_tile, shared.warp_max[w]);
    atomicMax(out.tensor.parts, of_tile << 16);
  }
}

template <bool kFull>
__global__ void __launch_bounds__(kTileThreads, 3) cast_experts(const StackArgs a, int items) {
  __shared__ TileShared shared;
  __shared__ int next;
  const ThreadPlace at;
  const int of_expert = a.row_tiles * a.col_tiles;
  if (threadIdx.x == 0) next = static_cast<int>(atomicAdd(a.next_item, 1u));
  __syncthreads();
  for (int index = next; index < items;) {
    int ahead = 0;
    if (threadIdx.x == 0) ahead = static_cast<int>(atomicAdd(a.next_item, 1u));
    const Item item = item_at(a, index);
    const int expert = item.tile / of_expert, tile = item.tile % of_expert;
    const std::int64_t row0 = tile / a.col_tiles * kTile, col0 = tile % a.col_tiles * kTile;
    Matrix matrix = a.expert;
    matrix.data += expert * matrix.rows * matrix.pitch;
    Bf16x8 square[kSquare];
#pragma unroll
    for (int i = 0; i < kSquare; ++i) square[i] = load<kFull>(matrix, row0 + at.row() + i, col0 + at.col());
    const TileOutput out = output_of(a, expert);
    if (!item.cast) {
      raise_amaxes<kFull>(square, matrix, out, row0, col0, shared);
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(a.done + expert, 1u);
      }
    } else {
      if (a.done) {
        if (threadIdx.x == 0) {
          while (*static_cast<volatile unsigned*>(a.done + expert) < static_cast<unsigned>(of_expert)) {
          }
          __threadfence();
        }
        __syncthreads();
      }
      cast_tile<kFull>(square, out, row0, col0, shared);
    }
    __syncthreads();
    if (threadIdx.x == 0) next = ahead;
    __syncthreads();
    index = next;
  }
}

/// Whether every expert's part of a form and of its scales lies by itself.
bool apart(const GemmOperand& form, std::int64_t experts) {
  const Granularity g = form.format.granularity;
  if (g == Granularity::tensor || g == Granularity::row) return true;
  return g == Granularity::block_128x128 && form.data.rows / experts % kTile == 0 &&
         form.data.cols % kTile == 0;
}

/// The forms that are apart, in one launch.
void cast_stack(CudaDevice& device, const QuantizedTensor& w, std::int64_t experts) {
  const std::int64_t E = experts, N = w.value.rows / E, k = w.value.cols;
  StackArgs args{.expert = matrix(w.value),
                 .output = {},
                 .amaxes = nullptr,
                 .done = nullptr,
                 .next_item = nullptr,
                 .experts = static_cast<int>(E),
                 .row_tiles = static_cast<int>((N + kTile - 1) / kTile),
                 .col_tiles = static_cast<int>((k + kTile - 1) / kTile),
                 .experts_of_run = 1};
  args.expert.rows = N;
  TileOutput& out = args.output;
  out.rowwise = form_args(w.rowwise, device.stream());
  out.columnwise = form_args(w.columnwise, device.stream());
  out.rowwise.rows /= E;
  out.columnwise.rows /= E;
  const bool rows = scaled_by_row(w.rowwise), columns = scaled_by_row(w.columnwise);
  const bool of_expert = (out.rowwise.data && out.rowwise.granularity == Granularity::tensor) ||
                         (out.columnwise.data && out.columnwise.granularity == Granularity::tensor);
  const std::int64_t words = 1 + E + (rows ? E * N : 0) + (columns ? E * k : 0) + (of_expert ? E : 0);
  auto* free = static_cast<std::uint32_t*>(device.scratch(static_cast<std::size_t>(words) * sizeof(float)));
  PRECBENCH_CHECK(cudaMemsetAsync(free, 0, static_cast<std::size_t>(words) * sizeof(float), device.stream()));
  const auto take = [&](std::int64_t count) { return std::exchange(free, free + count); };
  args.next_item = take(1);
  if (rows || columns || of_expert) args.done = take(E);
  const auto raised = [&](FormArgs& form, std::int32_t*& amaxes, std::int64_t count) {
    amaxes = reinterpret_cast<std::int32_t*>(take(count));
    form.amax = reinterpret_cast<const float*>(amaxes);
  };
  if (rows) raised(out.rowwise, out.row_amax, E * N);
  if (columns) raised(out.columnwise, out.col_amax, E * k);
  if (of_expert) args.amaxes = take(E);
  const int tiles_of_expert = args.row_tiles * args.col_tiles;
  args.experts_of_run = std::max(1, kRunTiles / tiles_of_expert);
  const int items = static_cast<int>(E) * tiles_of_expert * (args.done ? 2 : 1);
  if (items == 0) return;
  const bool full = args.expert.vectors && N % kTile == 0 && k % kTile == 0;
  const auto kernel = full ? cast_experts<true> : cast_experts<false>;
  const int grid = row_grid(device, kernel, kTileThreads, 0, items);
  kernel<<<grid, kTileThreads, 0, device.stream()>>>(args, items);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_quantize_experts(const ops::QuantizeExperts& op) {
  using namespace cuda;
  QuantizedTensor together = op.w;
  for (const bool columns : {false, true}) {
    GemmOperand& form = columns ? together.columnwise : together.rowwise;
    if (!wanted(form)) continue;
    const bool rows_alone = !columns && scaled_by_row(form) && !wanted(op.w.columnwise);
    if (apart(form, op.experts) && !rows_alone) continue;
    const StackSource source(op.w.value, columns ? op.experts : 1);
    QuantizedTensor w = op.w;
    w.rowwise = w.columnwise = {};
    (columns ? w.columnwise : w.rowwise) = std::exchange(form, {});
    void* amaxes = scratch(amax_scratch_bytes(*this, w));
    produce(*this, source, TileOutputs<1>{{tile_output(*this, w, false, amaxes)}});
  }
  if (wanted(together.rowwise) || wanted(together.columnwise)) cast_stack(*this, together, op.experts);
  launched("quantize_experts");
}

}  // namespace precbench
