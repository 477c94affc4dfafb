// Biases of experts, and their gradients. All sums have an order that depends only on the shape, the routing and the GPU.
//
//   add_expert_bias        a block per row, which finds its expert by the groups' offsets
//   expert_bias_backward   a block per expert and 256 columns; each of its warps adds every eighth row
//   add_routed_bias        a block per token, which adds the biases of its slots in order
//   routed_bias_backward   a block per token for the weights' gradients; for the biases' a block per run of slots, expert
//                          and 256 columns, whose warps look for the expert in 32 slots at a time
#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/row.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kBiasWarps = 8, kBiasThreads = kBiasWarps * kWarp, kBiasColumns = 8 * kWarp;
static_assert(kBiasThreads == kBiasColumns);
constexpr std::int64_t kFewestSlots = 32 * kBiasWarps;  // of a run

/// Returns the group of a row. An empty group begins where the next one does, and has none.
__device__ inline int group_of(const std::int32_t* offsets, int groups, std::int64_t row) {
  int first = 0, last = groups;  // offsets[first] <= row < offsets[last]
  while (first + 1 < last) {
    const int middle = (first + last) / 2;
    (offsets[middle] <= row ? first : last) = middle;
  }
  return first;
}

__global__ void __launch_bounds__(kBiasThreads)
    add_expert_bias_kernel(std::uint16_t* x, const std::uint16_t* bias, const std::int32_t* offsets,
                           const std::int32_t* source, int groups, std::int64_t cols) {
  wait_for_work_before();
  const std::int64_t row = blockIdx.x;
  if (source[row] < 0) return;
  const std::int64_t at = group_of(offsets, groups, row) * cols;
  for (std::int64_t col = threadIdx.x * 8; col < cols; col += kBiasThreads * 8) {
    float sum[8], added[8];
    load_vector(sum, x + row * cols + col);
    load_vector(added, bias + at + col);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += added[j];
    store_vector(x + row * cols + col, sum);
  }
}

/// Adds the warps' sums of 256 columns in order; returns the total of the thread's column.
__device__ inline float sum_of_warps(const float (&sum)[8]) {
  alignas(16) __shared__ float sums[kBiasWarps][kBiasColumns];
  store_vector(&sums[threadIdx.x / kWarp][threadIdx.x % kWarp * 8], sum);
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kBiasWarps; ++w) total += sums[w][threadIdx.x];
  return total;
}

template <class T>
__global__ void __launch_bounds__(kBiasThreads)
    expert_bias_backward_kernel(T* dbias, const std::uint16_t* dy, const std::int32_t* offsets,
                                const std::int32_t* counts, std::int64_t cols, bool accumulate) {
  wait_for_work_before();
  const std::int64_t expert = blockIdx.y, first_col = static_cast<std::int64_t>(blockIdx.x) * kBiasColumns;
  const std::int64_t col = first_col + threadIdx.x % kWarp * 8;
  const std::int64_t first = offsets[expert], last = first + counts[expert];
  float sum[8] = {};
  if (col < cols) {
#pragma unroll 4
    for (std::int64_t row = first + threadIdx.x / kWarp; row < last; row += kBiasWarps) {
      float x[8];
      load_vector(x, dy + row * cols + col);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += x[j];
    }
  }
  const float total = sum_of_warps(sum);
  if (first_col + threadIdx.x >= cols) return;
  T& out = dbias[expert * cols + first_col + threadIdx.x];
  from_float(out, accumulate ? to_float(out) + total : total);
}

__global__ void __launch_bounds__(kBiasThreads)
    add_routed_bias_kernel(std::uint16_t* out, const std::uint16_t* bias, const std::int32_t* index,
                           const float* weights, int top_k, std::int64_t cols) {
  wait_for_work_before();
  const std::int64_t token = blockIdx.x;
  for (std::int64_t col = threadIdx.x * 8; col < cols; col += kBiasThreads * 8) {
    float sum[8];
    load_vector(sum, out + token * cols + col);
    for (std::int64_t slot = token * top_k; slot < (token + 1) * top_k; ++slot) {
      const float weight = weights[slot];
      float added[8];
      load_vector(added, bias + index[slot] * cols + col);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += weight * added[j];
    }
    store_vector(out + token * cols + col, sum);
  }
}

/// A warp per slot of the block's token.
__global__ void __launch_bounds__(kBiasThreads)
    routed_bias_weights_kernel(float* dw, const std::uint16_t* dy, const std::uint16_t* bias,
                               const std::int32_t* index, int top_k, std::int64_t cols) {
  wait_for_work_before();
  const std::int64_t token = blockIdx.x;
  for (int k = static_cast<int>(threadIdx.x) / kWarp; k < top_k; k += kBiasWarps) {
    const std::int64_t slot = token * top_k + k, at = index[slot] * cols;
    float dot = 0;
    for (std::int64_t col = threadIdx.x % kWarp * 8; col < cols; col += kBiasColumns) {
      float x[8], y[8];
      load_vector(x, dy + token * cols + col);
      load_vector(y, bias + at + col);
#pragma unroll
      for (int j = 0; j < 8; ++j) dot = fmaf(x[j], y[j], dot);
    }
    dot = warp_sum(dot);
    if (threadIdx.x % kWarp == 0) dw[slot] += dot;
  }
}

struct RoutedBiasArgs {
  float* partial;  // [runs, experts * cols]
  const std::uint16_t* dy;
  const std::int32_t* index;
  const float* weights;
  std::int64_t slots, slots_per_run, cols;
  int top_k;
};

__global__ void __launch_bounds__(kBiasThreads) routed_bias_backward_kernel(const RoutedBiasArgs a) {
  wait_for_work_before();
  const std::int64_t expert = blockIdx.y, first_col = static_cast<std::int64_t>(blockIdx.x) * kBiasColumns;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t col = first_col + lane * 8;
  const std::int64_t first = blockIdx.z * a.slots_per_run;
  const std::int64_t last = first + a.slots_per_run < a.slots ? first + a.slots_per_run : a.slots;
  float sum[8] = {};
  for (std::int64_t at = first + threadIdx.x / kWarp * kWarp; at < last; at += kBiasThreads) {
    const bool mine = at + lane < last && a.index[at + lane] == expert;
    for (unsigned found = __ballot_sync(kAllLanes, mine); found != 0; found &= found - 1) {
      const std::int64_t slot = at + __ffs(static_cast<int>(found)) - 1;
      const float weight = a.weights[slot];
      if (col >= a.cols) continue;
      float x[8];
      load_vector(x, a.dy + slot / a.top_k * a.cols + col);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += weight * x[j];
    }
  }
  const float total = sum_of_warps(sum);
  if (first_col + threadIdx.x < a.cols)
    a.partial[(blockIdx.z * gridDim.y + expert) * a.cols + first_col + threadIdx.x] = total;
}

void check_expert_bias(std::int64_t cols) {
  if (cols % 8 != 0) throw Unsupported("the CUDA device has biases of experts of a multiple of 8 elements");
}

unsigned bias_columns(std::int64_t cols) {
  return static_cast<unsigned>((cols + kBiasColumns - 1) / kBiasColumns);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_add_expert_bias(const ops::AddExpertBias& op) {
  using namespace cuda;
  check_expert_bias(op.x.cols);
  add_expert_bias_kernel<<<static_cast<unsigned>(op.x.rows), kBiasThreads, 0, stream()>>>(
      op.x.as<std::uint16_t>(), op.bias.as<std::uint16_t>(), op.groups.offsets.as<std::int32_t>(),
      op.groups.source.as<std::int32_t>(), static_cast<int>(op.groups.experts()), op.x.cols);
  launched("add_expert_bias");
}

void CudaDevice::do_expert_bias_backward(const ops::ExpertBiasBackward& op) {
  using namespace cuda;
  const std::int64_t N = op.dy.cols;
  check_expert_bias(N);
  const dim3 grid(bias_columns(N), static_cast<unsigned>(op.groups.experts()));
  with_type(op.dbias.dtype, [&](auto type) {
    expert_bias_backward_kernel<<<grid, kBiasThreads, 0, stream()>>>(
        op.dbias.as<decltype(type)>(), op.dy.as<std::uint16_t>(), op.groups.offsets.as<std::int32_t>(),
        op.groups.counts.as<std::int32_t>(), N, op.accumulate);
  });
  launched("expert_bias_backward");
}

void CudaDevice::do_add_routed_bias(const ops::AddRoutedBias& op) {
  using namespace cuda;
  check_expert_bias(op.out.cols);
  add_routed_bias_kernel<<<static_cast<unsigned>(op.out.rows), kBiasThreads, 0, stream()>>>(
      op.out.as<std::uint16_t>(), op.bias.as<std::uint16_t>(), op.index.as<std::int32_t>(),
      op.weights.as<float>(), static_cast<int>(op.index.cols), op.out.cols);
  launched("add_routed_bias");
}

void CudaDevice::do_routed_bias_backward(const ops::RoutedBiasBackward& op) {
  using namespace cuda;
  const std::int64_t N = op.dy.cols, E = op.bias.size() / N, slots = op.index.size();
  check_expert_bias(N);
  const int top_k = static_cast<int>(op.index.cols);
  routed_bias_weights_kernel<<<static_cast<unsigned>(op.dy.rows), kBiasThreads, 0, stream()>>>(
      op.dw.as<float>(), op.dy.as<std::uint16_t>(), op.bias.as<std::uint16_t>(), op.index.as<std::int32_t>(),
      top_k, N);
  // About four blocks per multiprocessor.
  const std::int64_t blocks = bias_columns(N) * E,
                     wanted = std::max<std::int64_t>(1, 4 * sm_count() / blocks);
  const std::int64_t slots_per_run = std::max(kFewestSlots, (slots + wanted - 1) / wanted);
  const std::int64_t runs = (slots + slots_per_run - 1) / slots_per_run;
  auto* partial = static_cast<float*>(scratch(static_cast<std::size_t>(runs * E * N) * sizeof(float)));
  const dim3 grid(bias_columns(N), static_cast<unsigned>(E), static_cast<unsigned>(runs));
  routed_bias_backward_kernel<<<grid, kBiasThreads, 0, stream()>>>(
      {partial, op.dy.as<std::uint16_t>(), op.index.as<std::int32_t>(), op.weights.as<float>(), slots,
       slots_per_run, N, top_k});
  sum_rows(op.dbias, partial, static_cast<int>(runs), E * N, op.accumulate, stream());
  launched("routed_bias_backward");
}

}  // namespace precbench
