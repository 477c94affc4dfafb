// Addition of a bias or of positions, and its gradient.
//
// The gradient of a bias, dbias[N] = or += sum over the rows of dy[M,N], has two stages without atomics. A block
// processes 256 columns, eight per lane, of a run of rows. Each of its eight warps adds every eighth
// row; the warps are added in order in shared memory. sum_rows then adds the runs. So the order of all
// additions depends only on the shape and the GPU. Bytes per element: 2 read; the runs' sums are small by
// comparison. The gradient of positions adds the few rows of each position in order, one thread per 8 columns.
#include <algorithm>

#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/row.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kWarps = 8, kVector = 8, kColumns = kWarp * kVector;
constexpr std::int64_t kFewestRows = 8 * kWarps;  // per run: fewer are not worth a partial sum

template <bool kWeighted>
__global__ void __launch_bounds__(kWarps* kWarp)
    bias_backward_kernel(float* partial, const std::uint16_t* dy, const float* weights, std::int64_t rows,
                         std::int64_t cols, std::int64_t rows_per_run) {
  wait_for_work_before();
  alignas(16) __shared__ float sums[kWarps][kColumns];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane * kVector;
  const std::int64_t first = blockIdx.y * rows_per_run;
  const std::int64_t last = first + rows_per_run < rows ? first + rows_per_run : rows;
  float sum[kVector] = {};
  if (col < cols) {
#pragma unroll 4
    for (std::int64_t row = first + warp; row < last; row += kWarps) {
      float x[kVector];
      load_vector(x, dy + row * cols + col);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j] += kWeighted ? weights[row] * x[j] : x[j];
    }
  }
  store_vector(&sums[warp][lane * kVector], sum);
  __syncthreads();
  const std::int64_t mine = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  if (mine >= cols) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][threadIdx.x];
  partial[blockIdx.y * cols + mine] = total;
}

/// One thread adds 8 elements. `vectors`: per row.
template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    add_bias_kernel(T* x, const std::uint16_t* bias, const float* weights, std::int64_t count,
                    std::int64_t vectors, std::int64_t bias_rows) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (kWarps * kWarp) + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = i / vectors, at = row % bias_rows * vectors + i % vectors;
  float sum[kVector], added[kVector];
  load_vector(sum, x + i * kVector);
  load_vector(added, bias + at * kVector);
  const float weight = weights ? weights[row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum[j] += weight * added[j];
  store_vector(x + i * kVector, sum);
}

/// One thread sums 8 columns of a position's rows, which are `count` vectors apart.
template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    position_backward_kernel(T* dbias, const std::uint16_t* dy, std::int64_t count, std::int64_t all,
                             bool accumulate) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (kWarps * kWarp) + threadIdx.x;
  if (i >= count) return;
  float sum[kVector] = {};
  if (accumulate) load_vector(sum, dbias + i * kVector);
#pragma unroll 4
  for (std::int64_t at = i; at < all; at += count) {
    float x[kVector];
    load_vector(x, dy + at * kVector);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum[j] += x[j];
  }
  store_vector(dbias + i * kVector, sum);
}

unsigned vector_blocks(std::int64_t vectors) {
  return static_cast<unsigned>((vectors + kWarps * kWarp - 1) / (kWarps * kWarp));
}

void check_bias_width(std::int64_t cols) {
  if (cols % kVector != 0) throw Unsupported("a bias of a number of elements that is no multiple of 8");
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_add_bias(const ops::AddBias& op) {
  using namespace cuda;
  check_bias_width(op.x.cols);
  const std::int64_t vectors = op.x.cols / kVector, count = op.x.rows * vectors;
  with_type(op.x.dtype, [&](auto type) {
    add_bias_kernel<<<vector_blocks(count), kWarps * kWarp, 0, stream()>>>(
        op.x.as<decltype(type)>(), op.bias.as<std::uint16_t>(), op.weights.as<float>(), count, vectors,
        op.bias.rows);
  });
  launched("add_bias");
}

void CudaDevice::do_bias_backward(const ops::BiasBackward& op) {
  using namespace cuda;
  static_assert(kWarps * kWarp == kColumns);
  const std::int64_t M = op.dy.rows, N = op.dy.cols;
  check_bias_width(N);
  if (op.dbias.rows > 1) {
    const std::int64_t count = op.dbias.size() / kVector;
    with_type(op.dbias.dtype, [&](auto type) {
      position_backward_kernel<<<vector_blocks(count), kWarps * kWarp, 0, stream()>>>(
          op.dbias.as<decltype(type)>(), op.dy.as<std::uint16_t>(), count, op.dy.size() / kVector,
          op.accumulate);
    });
    return launched("bias_backward");
  }
  const std::int64_t across = (N + kColumns - 1) / kColumns;
  // About four blocks per multiprocessor.
  const std::int64_t wanted = std::max<std::int64_t>(1, 4 * sm_count() / across);
  const std::int64_t rows_per_run = std::max(kFewestRows, (M + wanted - 1) / wanted);
  const std::int64_t runs = (M + rows_per_run - 1) / rows_per_run;
  auto* partial = static_cast<float*>(scratch(static_cast<std::size_t>(runs * N) * sizeof(float)));
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(runs));
  const auto kernel = op.weights.empty() ? bias_backward_kernel<false> : bias_backward_kernel<true>;
  kernel<<<grid, kWarps * kWarp, 0, stream()>>>(partial, op.dy.as<std::uint16_t>(), op.weights.as<float>(), M,
                                                N, rows_per_run);
  sum_rows(op.dbias, partial, static_cast<int>(runs), N, op.accumulate, stream());
  launched("bias_backward");
}

}  // namespace precbench
