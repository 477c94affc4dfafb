// The second engine: kernels that hold a whole row in registers, because they reduce over it. Such a kernel
// directly writes the value, a rowwise copy with scales per row or per block within a row, and the tensor's
// amax. The rest, everything columnwise, is left to amax_tiles and cast_tiles (tile.cuh).
//
// A block has one row at a time, thread t the vectors t, t + blockDim, ... of 8 elements, at most kVectors:
//
//   row in global memory -> registers -> partial sums -> shared memory, barrier: sum of the row
//                               |                              |
//                               v                              v
//                          the op's result, still in registers, and its maximum
//                               |                              |  barrier, if the scale is per row
//                               v                              v
//                          value, rowwise copy -> global mem.  tensor amax, kept until the block's last row
//
// and then continues with the row one grid further.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/quantize/tile.cuh"
#include "kernels/gpu/shape_limits.h"

namespace precbench::cuda {

inline constexpr int kRowThreads = 512;  ///< maximum

/// Block size and vectors per thread for rows of `cols`.
struct RowShape {
  int threads = 0;
  int vectors = 0;  ///< 2 or 4: the kernels' template argument
};
/// Returns true if rows of this width fit a block.
bool fits_row(std::int64_t cols);
/// Throws Unsupported if rows of this width do not fit.
RowShape row_shape(std::int64_t cols);

/// The parts of an output that a row kernel writes and those that it leaves to cast_tiles.
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

/// Returns the blocks of a persistent grid: as many as fit, at most one per row, and at most `limit`. Throws Unsupported if
/// the GPU's blocks cannot have that much shared memory.
template <class Kernel>
int row_grid(const CudaDevice& device, Kernel kernel, int threads, std::size_t shared_bytes,
             std::int64_t limit) {
  // A block has 48 KiB by default, but the kernel's static shared memory counts too.
  if (shared_bytes > 0 && cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(shared_bytes)) != cudaSuccess) {
    cudaGetLastError();  // or a later check reports it
    throw Unsupported("rows of this width need " + std::to_string(shared_bytes / 1024) +
                      " KiB of shared memory per block, more than this GPU has");
  }
  int per_sm = 0;
  PRECBENCH_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, shared_bytes));
  const std::int64_t blocks = static_cast<std::int64_t>(per_sm) * device.sm_count();
  return static_cast<int>(blocks < limit ? blocks : limit);
}

/// Returns the number of blocks that each write a partial sum of their rows. With 16 rows or more per block,
/// the sums are less than a tenth of the bytes. If that leaves too few loads in flight, 4: sums of so few
/// rows stay in L2.
inline std::int64_t most_blocks_that_sum(const CudaDevice& device, std::int64_t rows) {
  const std::int64_t blocks = (rows + 15) / 16;
  if (blocks >= 2 * device.sm_count()) return blocks;
  return std::min<std::int64_t>((rows + 3) / 4, 4 * device.sm_count());
}

/// out[c] = or += sum over rows of partial[row * pitch + c], in a fixed order; out f32 or bf16.
void sum_rows(const Tensor& out, const float* partial, int rows, std::int64_t pitch, bool accumulate,
              cudaStream_t stream);

/// One thread's part of writing rows. cols is a multiple of 8.
template <int kVectors>
class RowWriter {
 public:
  __device__ RowWriter(const TileOutput& out, std::int64_t cols) : out_(out), cols_(static_cast<int>(cols)) {}

  __device__ int col(int v) const { return static_cast<int>(v * blockDim.x + threadIdx.x) * 8; }

  /// Every thread of the block must call it; vectors outside the row are 0. One barrier if scales are per
  /// row.
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
    const CopyArgs& copy = out_.rowwise;
    if (!copy.data) return;
    float s = 0;
    if (copy.granularity == Granularity::row)
      s = make_scale(copy, block_max(of_row, buffer) << 16, row, threadIdx.x == 0);
    const int lanes = copy.granularity == Granularity::block_1x32 ? 4 : 16;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (copy.granularity != Granularity::row) {
        std::uint32_t m = largest[v];
        for (int step = 1; step < lanes; step *= 2) m = max(m, __shfl_xor_sync(kAllLanes, m, step));
        const std::int64_t index =
            scale_index(copy.granularity, copy.rows, copy.k, row, col(v) / (lanes * 8));
        s = make_scale(copy, m << 16, index, threadIdx.x % lanes == 0 && col(v) < cols_);
      }
      if (col(v) >= cols_) continue;
      float f[8];
      unpack(f, x[v]);
      with_fp8(copy.dtype, copy.dropped_bits, [&](auto dtype) {
        *reinterpret_cast<uint2*>(copy.data + row * copy.k + col(v)) =
            make_uint2(fp8x4(f[0] * s, f[1] * s, f[2] * s, f[3] * s, dtype),
                       fp8x4(f[4] * s, f[5] * s, f[6] * s, f[7] * s, dtype));
      });
    }
  }

  /// Writes the amax of the values that the block has seen.
  __device__ void finish(std::uint32_t* buffer /* [32] */) {
    if (!out_.tensor.result) return;
    __syncthreads();  // the last row may still be reading the buffer
    const std::uint32_t all = block_max(tensor_max_, buffer);
    if (threadIdx.x == 0) out_.tensor.parts[out_.tensor.first + blockIdx.x] = all << 16;
  }

 private:
  const TileOutput& out_;
  int cols_;
  std::uint32_t tensor_max_ = 0;
};

/// Calls body(std::integral_constant<int, vectors>) for the shape's vectors.
template <class Body>
void with_vectors(const RowShape& shape, Body&& body) {
  if (shape.vectors == 2) return body(std::integral_constant<int, 2>());
  body(std::integral_constant<int, 4>());
}

}  // namespace precbench::cuda
