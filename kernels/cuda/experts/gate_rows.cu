// The gate of a shared expert: each row times the sigmoid of its token's product with a vector, and backward. A block
// per row reads it eight columns per thread. Bytes per element: 4 read and 2 written, forward and backward.
#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kGateThreads = 256;

/// Returns the product of two vectors, to all threads of the block.
__device__ inline float block_dot(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count,
                                  float* buffer) {
  float dot = 0;
  for (std::int64_t i = threadIdx.x * 8; i < count; i += blockDim.x * 8) {
    float x[8], y[8];
    load_vector(x, a + i);
    load_vector(y, b + i);
#pragma unroll
    for (int j = 0; j < 8; ++j) dot = fmaf(x[j], y[j], dot);
  }
  return block_sum(dot, buffer);
}

__device__ inline void store_scaled(std::uint16_t* out, const std::uint16_t* in, float factor,
                                    std::int64_t count) {
  for (std::int64_t i = threadIdx.x * 8; i < count; i += blockDim.x * 8) {
    float x[8];
    load_vector(x, in + i);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] *= factor;
    store_vector(out + i, x);
  }
}

__global__ void __launch_bounds__(kGateThreads)
    gate_rows_kernel(std::uint16_t* y, float* gates, const std::uint16_t* raw, const std::uint16_t* x,
                     const std::uint16_t* w, std::int64_t cols, std::int64_t x_cols) {
  wait_for_work_before();
  __shared__ float buffer[kWarp];
  const std::int64_t row = blockIdx.x;
  const float z = block_dot(x + row * x_cols, w, x_cols, buffer);
  const float gate = 1.0f / (1.0f + expf(-z));
  if (threadIdx.x == 0) gates[row] = gate;
  store_scaled(y + row * cols, raw + row * cols, gate, cols);
}

__global__ void __launch_bounds__(kGateThreads)
    gate_rows_backward_kernel(std::uint16_t* draw, float* dz, const std::uint16_t* dy,
                              const std::uint16_t* raw, const float* gates, std::int64_t cols) {
  wait_for_work_before();
  __shared__ float buffer[kWarp];
  const std::int64_t row = blockIdx.x;
  const float dgate = block_dot(dy + row * cols, raw + row * cols, cols, buffer), gate = gates[row];
  if (threadIdx.x == 0) dz[row] = dgate * gate * (1.0f - gate);
  store_scaled(draw + row * cols, dy + row * cols, gate, cols);
}

int threads_for(std::int64_t cols) {
  if (cols % 8 != 0) throw Unsupported("the CUDA device gates rows of a multiple of 8 elements");
  const int vectors = static_cast<int>(std::min<std::int64_t>(cols / 8, kGateThreads));
  return (vectors + kWarp - 1) / kWarp * kWarp;
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_gate_rows(const ops::GateRows& op) {
  using namespace cuda;
  const int threads = std::max(threads_for(op.y.cols), threads_for(op.x.cols));
  gate_rows_kernel<<<static_cast<unsigned>(op.y.rows), threads, 0, stream()>>>(
      op.y.as<std::uint16_t>(), op.gate.as<float>(), op.raw.as<std::uint16_t>(), op.x.as<std::uint16_t>(),
      op.w.as<std::uint16_t>(), op.y.cols, op.x.cols);
  launched("gate_rows");
}

void CudaDevice::do_gate_rows_backward(const ops::GateRowsBackward& op) {
  using namespace cuda;
  gate_rows_backward_kernel<<<static_cast<unsigned>(op.dy.rows), threads_for(op.dy.cols), 0, stream()>>>(
      op.draw.as<std::uint16_t>(), op.dz.as<float>(), op.dy.as<std::uint16_t>(), op.raw.as<std::uint16_t>(),
      op.gate.as<float>(), op.dy.cols);
  launched("gate_rows_backward");
}

}  // namespace precbench
