// Host side shared by row kernels, and the second stage of their sums over rows.
#include "kernels/cuda/quantize/row.cuh"

#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::cuda {

bool fits_row(std::int64_t cols) { return !width_unsupported_reason(cols); }

RowShape row_shape(std::int64_t cols) {
  static_assert(kWidestRow == kRowThreads * 4 * 8);
  if (const auto why = width_unsupported_reason(cols)) throw Unsupported(*why);
  const int vectors = cols <= kRowThreads * 2 * 8 ? 2 : 4;
  const std::int64_t per_warp = kWarp * 8 * vectors;
  return {static_cast<int>((cols + per_warp - 1) / per_warp * kWarp), vectors};
}

namespace {

/// A block sums 32 columns: warp w the rows w, w + 32, ..., then one warp adds the warps in order.
template <class T>
__global__ void __launch_bounds__(kWarp* kWarp)
    sum_rows_kernel(T* out, const float* partial, int rows, std::int64_t cols, std::int64_t pitch,
                    bool accumulate) {
  wait_for_work_before();
  __shared__ float sums[kWarp][kWarp + 1];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (col < cols) {
#pragma unroll 8
    for (int row = warp; row < rows; row += kWarp) sum += partial[row * pitch + col];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || col >= cols) return;
  float total = accumulate ? to_float(out[col]) : 0.0f;
#pragma unroll
  for (int w = 0; w < kWarp; ++w) total += sums[w][lane];
  from_float(out[col], total);
}

}  // namespace

void sum_rows(const Tensor& out, const float* partial, int rows, std::int64_t pitch, bool accumulate,
              cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((out.size() + kWarp - 1) / kWarp);
  with_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    sum_rows_kernel<<<blocks, kWarp * kWarp, 0, stream>>>(out.as<T>(), partial, rows, out.size(), pitch,
                                                          accumulate);
  });
}

}  // namespace precbench::cuda
