// A bias added to rows, and its gradient, dbias[N] = or += sum over the rows of dy[M,N], in two stages without
// atomics.
//
// Adding takes one vector of eight elements per thread. In the gradient's kernel
// A block processes 256 columns, eight per lane, of a run of rows. Each of its eight warps adds every eighth
// row; the warps are added in order in shared memory. sum_rows then adds the runs. So the order of all
// additions depends only on the shape and the GPU. Bytes per element: 2 read; the runs' sums are small by
// comparison.
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

/// vectors: of all rows; per_row: of one.
__global__ void __launch_bounds__(kWarps* kWarp)
    add_bias_kernel(std::uint16_t* x, const std::uint16_t* bias, const float* weights, std::int64_t vectors,
                    std::int64_t per_row) {
  wait_for_work_before();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kWarps * kWarp) + threadIdx.x;
  if (index >= vectors) return;
  float values[kVector], added[kVector];
  load_vector(values, x + index * kVector);
  load_vector(added, bias + index % per_row * kVector);
  const float weight = weights ? weights[index / per_row] : 1.0f;
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] += weight * added[j];
  store_vector(x + index * kVector, values);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_add_bias(const ops::AddBias& op) {
  using namespace cuda;
  if (op.x.cols % kVector != 0) throw Unsupported("a bias of a number of elements that is no multiple of 8");
  constexpr int kThreads = kWarps * kWarp;
  const std::int64_t vectors = op.x.size() / kVector;
  add_bias_kernel<<<static_cast<unsigned>((vectors + kThreads - 1) / kThreads), kThreads, 0, stream()>>>(
      op.x.as<std::uint16_t>(), op.bias.as<std::uint16_t>(), op.weights.as<float>(), vectors,
      op.x.cols / kVector);
  launched("add_bias");
}

void CudaDevice::do_bias_backward(const ops::BiasBackward& op) {
  using namespace cuda;
  static_assert(kWarps * kWarp == kColumns);
  const std::int64_t M = op.dy.rows, N = op.dy.cols;
  if (N % kVector != 0) throw Unsupported("a bias of a number of elements that is no multiple of 8");
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
