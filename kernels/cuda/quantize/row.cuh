// The other engine: kernels that hold a whole row in registers, because they reduce over it. What such a
// kernel can write of its QuantizedTensor on the spot, it does: the value, a row form whose scales belong to rows or
// to blocks inside one, and the amax of the tensor. The rest, everything about columns, is left to amax_tiles
// and cast_tiles (tile.cuh), but where all scales are known before.
//
// A block has one row at a time, thread t the vectors t, t + blockDim, ... of 8 elements, kVectors at most.
#pragma once

#include <type_traits>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/quantize/tile.cuh"
#include "kernels/gpu/shape_limits.h"

namespace precbench::cuda {

inline constexpr int kRowThreads = 512;  ///< at most

/// Block and vectors per thread for rows of `cols`.
struct RowShape {
  int threads = 0;
  int vectors = 0;  ///< 2 or 4: the kernels' template argument
};
/// Whether rows of this width fit a block.
bool fits_row(std::int64_t cols);
/// Throws Unsupported where they do not.
RowShape row_shape(std::int64_t cols);

/// The parts of an output that a row kernel makes and those that it leaves to cast_tiles.
struct SplitOutput {
  TileOutput now, later;
};
inline SplitOutput split(const TileOutput& all) {
  SplitOutput parts{all, all};
  parts.now.row_amax = nullptr;  // a row's amax stays in the kernel
  parts.now.columnwise = {};
  parts.later.value = {};
  parts.later.row_amax = nullptr;
  parts.now.col_amax = nullptr;
  switch (all.rowwise.granularity) {
    case Granularity::row:
    case Granularity::block_1x128:
    case Granularity::block_1x32:
      parts.later.rowwise = {};
      break;
    default:
      parts.now.rowwise = {};
  }
  return parts;
}

/// Blocks of a persistent grid: as many as fit, at most one per row, and at most `limit`.
template <class Kernel>
int row_grid(const CudaDevice& device, Kernel kernel, int threads, std::size_t shared_bytes,
             std::int64_t limit) {
  // A block may have 48 KiB unasked, but what the kernel itself declares counts, too.
  if (shared_bytes > 0)
    PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared_bytes)));
  int per_sm = 0;
  PRECBENCH_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, shared_bytes));
  const std::int64_t blocks = static_cast<std::int64_t>(per_sm) * device.sm_count();
  return static_cast<int>(blocks < limit ? blocks : limit);
}

/// out[c] = or += sum over rows of partial[row * pitch + c], in a fixed order; out f32 or bf16.
void sum_rows(const Tensor& out, const float* partial, int rows, std::int64_t pitch, bool accumulate,
              cudaStream_t stream);

/// One thread's part of writing rows, one after the other. cols is a multiple of 8.
template <int kVectors>
class RowWriter {
 public:
  static constexpr int kRows = 1;
  static constexpr std::size_t shared_bytes(int /*threads*/) { return 0; }

  __device__ RowWriter(const TileOutput& out, std::int64_t cols, std::uint32_t* /*shared*/ = nullptr)
      : out_(out), cols_(static_cast<int>(cols)) {}

  __device__ int col(int v) const { return static_cast<int>(v * blockDim.x + threadIdx.x) * 8; }

  /// Every thread of the block calls it; vectors outside the row are 0. One barrier if scales belong to rows.
  __device__ void write(std::int64_t row, const Bf16x8 (&x)[kVectors], std::uint32_t* buffer /* [32] */) {
    std::uint32_t largest[kVectors];
    std::uint32_t of_row = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      largest[v] = max_half(max_of_pairs(x[v]));
      of_row = max(of_row, largest[v]);
      if (out_.value.data && col(v) < cols_)
        store_vector(out_.value.data + row * out_.value.pitch + col(v), x[v]);
    }
    tensor_max_ = max(tensor_max_, of_row);
    const FormArgs& form = out_.rowwise;
    if (!form.data) return;
    float s = 0;
    if (form.granularity == Granularity::row)
      s = make_scale(form, block_max(of_row, buffer) << 16, row, threadIdx.x == 0);
    const int lanes = form.granularity == Granularity::block_1x32 ? 4 : 16;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (form.granularity != Granularity::row) {
        std::uint32_t m = largest[v];
        for (int step = 1; step < lanes; step *= 2) m = max(m, __shfl_xor_sync(kAllLanes, m, step));
        const std::int64_t index =
            scale_index(form.granularity, form.rows, form.k, row, col(v) / (lanes * 8));
        s = make_scale(form, m << 16, index, threadIdx.x % lanes == 0 && col(v) < cols_);
      }
      if (col(v) >= cols_) continue;
      with_fp8(form.dtype, form.dropped_bits, [&](auto dtype) {
        *reinterpret_cast<uint2*>(form.data + row * form.k + col(v)) = fp8x8(x[v], s, dtype);
      });
    }
  }

  /// Leaves the amax of what the block has seen.
  __device__ void finish(std::uint32_t* buffer /* [32] */) {
    if (!out_.tensor.result) return;
    __syncthreads();  // the buffer may still be read by the last row
    const std::uint32_t all = block_max(tensor_max_, buffer);
    if (threadIdx.x == 0) out_.tensor.parts[out_.tensor.first + blockIdx.x] = all << 16;
  }

 private:
  const TileOutput& out_;
  int cols_;
  std::uint32_t tensor_max_ = 0;
};

/// Vectors of a thread that KnownRowWriter is for: with 4 of them registers have no room for a row that is fetched ahead.
inline constexpr int kKnownVectors = 2;

/// The same where every scale is a tensor's whose amax was known before (TileCase::known), columns included, for which
/// rows come kRows at a time, from a multiple of it on. A column's codes lie in memory one behind the other, so those
/// of a thread wait in shared memory until there are 16 bytes of each of its columns. No thread reads another's: no barrier.
template <int kVectors>
class KnownRowWriter {
 public:
  static constexpr int kRows = 16;
  static constexpr std::size_t shared_bytes(int threads) {
    return static_cast<std::size_t>(threads) * kVectors * 8 * kRows;
  }

  __device__ KnownRowWriter(const TileOutput& out, std::int64_t cols, std::uint32_t* shared)
      : out_(out), cols_(static_cast<int>(cols)), codes_(shared + threadIdx.x) {
    const std::uint32_t amax = *out.tensor.parts;
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
    if (out.rowwise.data) row_factor_ = make_scale(out.rowwise, amax, 0, first);
    if (out.columnwise.data) column_factor_ = make_scale(out.columnwise, amax, 0, first);
  }

  __device__ int col(int v) const { return static_cast<int>(v * blockDim.x + threadIdx.x) * 8; }

  /// Vectors outside the row are 0.
  __device__ void write(std::int64_t row, const Bf16x8 (&x)[kVectors], std::uint32_t* /*buffer*/) {
    const FormArgs &rows = out_.rowwise, &columns = out_.columnwise;
    const int turn = static_cast<int>(row % kRows);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      largest_ = max_of_pairs(largest_, max_of_pairs(x[v]));
      if (col(v) >= cols_) continue;
      if (out_.value.data) store_vector(out_.value.data + row * out_.value.pitch + col(v), x[v]);
      if (rows.data)
        with_fp8(rows.dtype, 0, [&](auto dtype) {
          *reinterpret_cast<uint2*>(rows.data + row * rows.k + col(v)) = fp8x8(x[v], row_factor_, dtype);
        });
      if (columns.data)
        with_fp8(columns.dtype, 0, [&](auto dtype) {
          const uint2 codes = fp8x8(x[v], column_factor_, dtype);
          waiting(v, 0, turn) = codes.x;
          waiting(v, 1, turn) = codes.y;
        });
    }
    if (columns.data && turn == kRows - 1) write_columns(row - turn);
  }

  /// Raises the amax that no scale of this pass comes from.
  __device__ void finish(std::uint32_t* buffer /* [32] */) {
    if (!out_.tensor.raised) return;
    const std::uint32_t all = block_max(max_half(largest_), buffer) << 16;
    if (threadIdx.x == 0) atomicMax(out_.tensor.raised, all);
  }

 private:
  /// Four codes of a row, those of columns 0 to 3 or 4 to 7 of vector v.
  __device__ std::uint32_t& waiting(int v, int half, int turn) {
    return codes_[((v * 2 + half) * kRows + turn) * blockDim.x];
  }

  __device__ void write_columns(std::int64_t row0) {
    const FormArgs& form = out_.columnwise;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (col(v) >= cols_) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t word[kRows / 4][4];
#pragma unroll
        for (int q = 0; q < kRows / 4; ++q) {
#pragma unroll
          for (int i = 0; i < 4; ++i) word[q][i] = waiting(v, half, 4 * q + i);
          turn_square(word[q]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
          store_vector(form.data + (col(v) + 4 * half + j) * form.k + row0,
                       {{word[0][j], word[1][j], word[2][j], word[3][j]}});
      }
    }
  }

  const TileOutput& out_;
  int cols_;
  std::uint32_t* codes_;
  float row_factor_ = 0, column_factor_ = 0;
  std::uint32_t largest_ = 0;  // of each half
};

/// Whether KnownRowWriter can write all of an output of `rows` rows, and has enough of them to fill the GPU.
bool in_known_rows(const CudaDevice& device, const TileOutput& out, std::int64_t rows, const RowShape& shape);

/// Calls body(std::integral_constant<int, vectors>) for the shape's vectors.
template <class Body>
void with_vectors(const RowShape& shape, Body&& body) {
  if (shape.vectors == 2) return body(std::integral_constant<int, 2>());
  body(std::integral_constant<int, 4>());
}

/// body(vectors, known) with both as constants; a kernel's writer is Writer<vectors, known>. `known`: in_known_rows.
template <class Body>
void with_writer(const RowShape& shape, bool known, Body&& body) {
  if (known) return body(std::integral_constant<int, kKnownVectors>(), std::true_type());
  with_vectors(shape, [&](auto vectors) { body(vectors, std::false_type()); });
}
template <int kVectors, bool kKnown>
using Writer = std::conditional_t<kKnown, KnownRowWriter<kVectors>, RowWriter<kVectors>>;

/// The blocks of a grid that takes `kRows` rows at a time: none has more rounds than it must.
inline int even_grid(int blocks, std::int64_t rows, int kRows) {
  const std::int64_t groups = (rows + kRows - 1) / kRows, rounds = (groups + blocks - 1) / blocks;
  return static_cast<int>((groups + rounds - 1) / rounds);
}

/// The row behind `row` of those that are a block's, of a persistent grid that takes kRows at a time.
template <int kRows>
__device__ inline std::int64_t next_row(std::int64_t row) {
  if ((row + 1) % kRows != 0) return row + 1;
  return row + 1 + static_cast<std::int64_t>(gridDim.x - 1) * kRows;
}

}  // namespace precbench::cuda
