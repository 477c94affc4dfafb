// The forms of stacked weights, each expert by itself, one or both of one launch. Where a scale belongs to a block, a tile has
// all that its codes need; where to a row, a column or an expert, amaxes go before (cast_behind.cuh).
//
// Forms whose blocks of scales do not end with an expert, or have padding, and rows alone with a scale each are made by the
// dense engine (produce.cuh), of the whole stack or of the experts side by side.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/cuda/quantize/cast_behind.cuh"

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

/// The tiles of a stack, expert after expert.
template <bool kFull>
struct StackWork {
  static constexpr int kBlocks = 3;
  using Shared = TileShared;
  Matrix expert;          ///< the first
  TileOutput output;      ///< its forms
  std::uint32_t* amaxes;  ///< of the experts, where a scale belongs to one
  int row_tiles, col_tiles;

  __device__ void amax(Shared& shared, int tile) const {
    const Place at = place(tile);
    Bf16x8 square[kSquare];
    load_square(square, at);
    raise_amaxes(square, output_of(at.expert), at, shared);
  }
  template <class Ready>
  __device__ void cast(Shared& shared, int tile, Ready&& ready) const {
    const Place at = place(tile);
    Bf16x8 square[kSquare];
    load_square(square, at);
    const TileOutput out = output_of(at.expert);
    ready();
    cast_tile<kFull>(square, out, at.row, at.col, shared);
  }

 private:
  struct Place {
    int expert;
    std::int64_t row, col;
  };
  __device__ Place place(int tile) const {
    const int of_expert = row_tiles * col_tiles, within = tile % of_expert;
    return {tile / of_expert, within / col_tiles * kTile, within % col_tiles * kTile};
  }
  __device__ void load_square(Bf16x8 (&square)[kSquare], const Place& at) const {
    const ThreadPlace thread;
    Matrix matrix = expert;
    matrix.data += at.expert * matrix.rows * matrix.pitch;
#pragma unroll
    for (int i = 0; i < kSquare; ++i)
      square[i] = load<kFull>(matrix, at.row + thread.row() + i, at.col + thread.col());
  }
  __device__ TileOutput output_of(int which) const {
    TileOutput out = output;
    const auto shift = [&](FormArgs& form, std::int32_t*& raised) {
      if (!form.data) return;
      form.data += which * form.rows * form.k;
      form.scale = static_cast<float*>(form.scale) + which * scale_count(form.granularity, form.rows, form.k);
      if (!raised) return;
      raised += which * form.rows;
      form.amax += which * form.rows;
    };
    shift(out.rowwise, out.row_amax);
    shift(out.columnwise, out.col_amax);
    if (amaxes) out.tensor = {.parts = amaxes + which, .count = 1};
    return out;
  }
  __device__ void raise_amaxes(const Bf16x8 (&square)[kSquare], const TileOutput& out, const Place& at,
                               TileShared& shared) const {
    const ThreadPlace thread;
    if (out.row_amax) {
      std::uint32_t rows[4];
      row_maxima(rows, square);
#pragma unroll
      for (std::uint32_t& two : rows)
#pragma unroll
        for (int step = 1; step < 16; step *= 2)
          two = max_of_pairs(two, __shfl_xor_sync(kAllLanes, two, step));
      if (thread.lane == 0)
        store_vector(&shared.row_max[0][thread.row()], {{rows[0], rows[1], rows[2], rows[3]}});
    }
    Bf16x8 cols;
    warp_col_maxima(cols, square);
    if (thread.half == 0) store_vector(&shared.col_max[thread.warp][thread.col()], cols);
    const std::uint32_t all = warp_max(cols);
    if (threadIdx.x % kWarp == 0) shared.warp_max[thread.warp] = all;
    __syncthreads();
    const int t = threadIdx.x % kTile;
    if (out.row_amax && threadIdx.x < kTile && (kFull || at.row + t < expert.rows))
      atomicMax(out.row_amax + at.row + t, static_cast<std::int32_t>(shared.row_max[0][t]) << 16);
    if (out.col_amax && threadIdx.x >= kTile && (kFull || at.col + t < expert.cols)) {
      std::uint32_t of_column = 0;
#pragma unroll
      for (int w = 0; w < kTileWarps; ++w)
        of_column = max(of_column, static_cast<std::uint32_t>(shared.col_max[w][t]));
      atomicMax(out.col_amax + at.col + t, static_cast<std::int32_t>(of_column << 16));
    }
    if (out.tensor.parts && threadIdx.x == 0) {
      std::uint32_t of_tile = 0;
#pragma unroll
      for (int w = 0; w < kTileWarps; ++w) of_tile = max(of_tile, shared.warp_max[w]);
      atomicMax(out.tensor.parts, of_tile << 16);
    }
    __syncthreads();
  }
};

/// Whether every expert's part of a form and of its scales lies by itself.
bool apart(const GemmOperand& form, std::int64_t experts) {
  const Granularity g = form.format.granularity;
  if (scale_dtype(form.format) != DType::f32) return false;
  if (g == Granularity::tensor || g == Granularity::row) return true;
  return g == Granularity::block_128x128 && form.data.rows / experts % kTile == 0 &&
         form.data.cols % kTile == 0;
}

/// The forms that are apart, in one launch.
void cast_stack(CudaDevice& device, const QuantizedTensor& w, std::int64_t experts) {
  const std::int64_t E = experts, N = w.value.rows / E, k = w.value.cols;
  TileOutput out;
  const auto arguments = [&](const GemmOperand& form) {
    FormArgs args =
        form.format.granularity == Granularity::tensor ? read_form(form) : form_args(form, device.stream());
    args.rows /= E;
    return args;
  };
  if (wanted(w.rowwise)) out.rowwise = arguments(w.rowwise);
  if (wanted(w.columnwise)) out.columnwise = arguments(w.columnwise);
  const bool rows = scaled_by_row(w.rowwise), columns = scaled_by_row(w.columnwise),
             whole = (out.rowwise.data && out.rowwise.granularity == Granularity::tensor) ||
                     (out.columnwise.data && out.columnwise.granularity == Granularity::tensor);
  const std::int64_t words = 1 + E + (rows ? E * N : 0) + (columns ? E * k : 0) + (whole ? E : 0);
  const auto bytes = static_cast<std::size_t>(words) * sizeof(std::uint32_t);
  auto* free = static_cast<std::uint32_t*>(device.scratch(bytes));
  PRECBENCH_CHECK(cudaMemsetAsync(free, 0, bytes, device.stream()));
  const auto take = [&](std::int64_t count) { return std::exchange(free, free + count); };
  const auto raised = [&](FormArgs& form, std::int32_t*& amaxes, std::int64_t count) {
    amaxes = reinterpret_cast<std::int32_t*>(take(count));
    form.amax = reinterpret_cast<const float*>(amaxes);
  };
  const int row_tiles = static_cast<int>((N + kTile - 1) / kTile),
            col_tiles = static_cast<int>((k + kTile - 1) / kTile),
            tiles = static_cast<int>(E) * row_tiles * col_tiles;
  Units units{.without = tiles, .counters = take(1 + E)};
  if (rows || columns || whole)
    units.count = static_cast<int>(E), units.tiles = row_tiles * col_tiles, units.ahead = kTilesAhead;
  if (rows) raised(out.rowwise, out.row_amax, E * N);
  if (columns) raised(out.columnwise, out.col_amax, E * k);
  std::uint32_t* const amaxes = whole ? take(E) : nullptr;
  Matrix expert = matrix(w.value);
  expert.rows = N;
  const auto run = [&](auto full) {
    run_behind(device, StackWork<full>{expert, out, amaxes, row_tiles, col_tiles}, units, 2 * tiles, 0);
  };
  if (expert.vectors && N % kTile == 0 && k % kTile == 0)
    run(std::true_type());
  else
    run(std::false_type());
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
