// Softmax cross-entropy and its gradient, in place over BF16 logits [M, V], in FP32.
//
// A row is read once from device memory and written once, 4 bytes per element. A persistent block has one row
// at a time in shared memory. Every thread keeps to its own vectors of the row, so barriers are needed only
// to reduce maxima and sums and to protect the target's logit. The loop that writes a row's gradient loads
// the next row into the freed places and updates its running maximum and sum, so reads and writes overlap all
// the time. Rows longer than shared memory (114,688 elements on compute capability 9.0) are read twice beyond
// that length, the second time from L2.
//
// Ranks that divide the vocabulary (logit_stats, logit_gradient) read their part of a row once for each of the two ops,
// a block per row.
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/numerics/activation_functions.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kBatch = 4;  // vectors in flight per thread
constexpr float kLog2E = 1.4426950408889634f;

/// Sum of e^(x - max) over some elements. Empty: max -inf, sum 0.
struct Running {
  float max = -INFINITY;
  float sum = 0;

  __device__ void join(float other_max, float other_sum) {
    const float largest = fmaxf(max, other_max);
    if (largest == -INFINITY) return;
    sum =
        sum * exp2_approx((max - largest) * kLog2E) + other_sum * exp2_approx((other_max - largest) * kLog2E);
    max = largest;
  }
  /// `valid`: number of the eight elements that belong to the row.
  __device__ void add(const float (&x)[8], int valid) {
    float largest = max;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < valid) largest = fmaxf(largest, x[j]);
    if (largest != max) {
      sum *= exp2_approx((max - largest) * kLog2E);
      max = largest;
    }
    const float offset = largest == -INFINITY ? 0.0f : largest * kLog2E;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < valid) sum += exp2_approx(x[j] * kLog2E - offset);
  }
};

/// Returns the block's total in every thread, added in the order of lanes and warps. Two barriers.
__device__ inline Running join_block(Running mine, float2* buffer /* [32] */) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    mine.join(__shfl_xor_sync(kAllLanes, mine.max, step), __shfl_xor_sync(kAllLanes, mine.sum, step));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) buffer[threadIdx.x / kWarp] = make_float2(mine.max, mine.sum);
  __syncthreads();
  Running all;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) all.join(buffer[w].x, buffer[w].y);
  return all;
}

struct Args {
  float* loss = nullptr;
  std::uint16_t* logits = nullptr;
  const std::int32_t* targets = nullptr;
  const float* weights = nullptr;  // null: 1 each
  std::int64_t rows = 0;
  int cols = 0;
  int slots = 0;  // vectors per thread and row
  int kept = 0;   // of them in shared memory
  float scale = 0;
  float softcap = 0;  // 0: none
};

/// Replaces eight logits by soft-capped ones.
template <bool kCapped>
__device__ inline void cap(float (&x)[8], float softcap) {
  if constexpr (kCapped)
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = soft_capped(x[j], softcap);
}

template <bool kVectors>
__device__ inline Bf16x8 load_logits(const Args& a, std::int64_t row, int col) {
  Bf16x8 v = {};
  if (col >= a.cols) return v;
  const std::uint16_t* p = a.logits + row * a.cols + col;
  if constexpr (kVectors) {
    v = load_vector(p);
  } else {
    for (int j = 0; j < 8 && col + j < a.cols; ++j)
      v.pair[j / 2] |= static_cast<std::uint32_t>(p[j]) << (16 * (j % 2));
  }
  return v;
}

/// Parameters of a row's gradient, from all its logits. `offset`: the largest, times log2(e).
struct RowGradient {
  float offset, factor, scale;
  int target;  // column; outside of the row if another rank has it
};

/// Replaces eight soft-capped logits by their gradient, and stores it. `valid`: number that belong to the row.
template <bool kVectors, bool kCapped>
__device__ inline void store_gradient(const Args& a, std::int64_t row, int col, float (&x)[8],
                                      const RowGradient& g, int valid) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float slope = kCapped ? soft_cap_slope(x[j], a.softcap) : 1.0f;
    x[j] = exp2_approx(x[j] * kLog2E - g.offset) * g.factor;
    if (col + j == g.target) x[j] -= g.scale;
    if (kCapped) x[j] *= slope;
  }
  const Bf16x8 out = pack(x);
  std::uint16_t* p = a.logits + row * a.cols + col;
  if (kVectors) {
    store_vector(p, out);
  } else {
    for (int j = 0; j < valid; ++j) p[j] = static_cast<std::uint16_t>(out.pair[j / 2] >> (16 * (j % 2)));
  }
}

template <bool kVectors, bool kCapped>
__global__ void __launch_bounds__(kMaxThreads, 1) cross_entropy_kernel(const Args a) {
  wait_for_work_before();
  extern __shared__ uint4 kept[];  // [slot][thread]
  __shared__ float2 buffer[kWarp];
  const auto col_of = [&](int slot) {
    return (slot * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
  };
  const auto valid = [&](int col) { return kVectors ? 8 : min(8, a.cols - col); };

  Running next;
  for (int slot = 0; slot < a.slots; slot += kBatch) {
    Bf16x8 v[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      v[k] = slot + k < a.slots ? load_logits<kVectors>(a, blockIdx.x, col_of(slot + k)) : Bf16x8{};
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int col = col_of(slot + k);
      if (slot + k >= a.slots || col >= a.cols) continue;
      if (slot + k < a.kept) store_vector(&kept[(slot + k) * blockDim.x + threadIdx.x], v[k]);
      float x[8];
      unpack(x, v[k]);
      cap<kCapped>(x, a.softcap);
      next.add(x, valid(col));
    }
  }

  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Running all = join_block(next, buffer);
    const int target = a.targets[row];
    const float weight = a.weights == nullptr ? 1.0f : a.weights[row];
    if (threadIdx.x == 0) {
      const float logit = low(a.logits[row * a.cols + target]);
      a.loss[row] = (logf(all.sum) + all.max - (kCapped ? soft_capped(logit, a.softcap) : logit)) * weight;
    }
    __syncthreads();  // the target's logit is read before its thread overwrites it
    const float scale = a.scale * weight;
    const RowGradient gradient{all.max * kLog2E, scale / all.sum, scale, target};
    const std::int64_t next_row = row + gridDim.x;
    next = {};
    for (int slot = 0; slot < a.slots; slot += kBatch) {
      Bf16x8 mine[kBatch], ahead[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int col = col_of(slot + k);
        const bool there = slot + k < a.slots && col < a.cols;
        ahead[k] = there && next_row < a.rows ? load_logits<kVectors>(a, next_row, col) : Bf16x8{};
        if (!there) continue;
        mine[k] = slot + k < a.kept ? load_vector(&kept[(slot + k) * blockDim.x + threadIdx.x])
                                    : load_logits<kVectors>(a, row, col);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int col = col_of(slot + k);
        if (slot + k >= a.slots || col >= a.cols) continue;
        float x[8];
        unpack(x, mine[k]);
        cap<kCapped>(x, a.softcap);
        store_gradient<kVectors, kCapped>(a, row, col, x, gradient, valid(col));
        if (next_row >= a.rows) continue;
        if (slot + k < a.kept) store_vector(&kept[(slot + k) * blockDim.x + threadIdx.x], ahead[k]);
        unpack(x, ahead[k]);
        cap<kCapped>(x, a.softcap);
        next.add(x, valid(col));
      }
    }
  }
}

struct DividedArgs {
  Args row;      // logits, targets, rows, cols, scale, softcap; loss and weights of the gradient
  float* stats;  // [rows, 3], or those of all ranks
  int ranks;
  std::int64_t first;  // token of the first column
};

template <bool kVectors, bool kCapped>
__global__ void __launch_bounds__(kMaxThreads, 1) logit_stats_kernel(const DividedArgs a) {
  wait_for_work_before();
  __shared__ float2 buffer[kWarp];
  const std::int64_t row = blockIdx.x;
  Running mine;
  for (int col = static_cast<int>(threadIdx.x) * 8; col < a.row.cols;
       col += static_cast<int>(blockDim.x) * 8) {
    float x[8];
    unpack(x, load_logits<kVectors>(a.row, row, col));
    cap<kCapped>(x, a.row.softcap);
    mine.add(x, kVectors ? 8 : min(8, a.row.cols - col));
  }
  const Running all = join_block(mine, buffer);
  if (threadIdx.x > 0) return;
  const std::int64_t target = a.row.targets[row] - a.first;
  float logit = -INFINITY;
  if (target >= 0 && target < a.row.cols) {
    logit = low(a.row.logits[row * a.row.cols + target]);
    if (kCapped) logit = soft_capped(logit, a.row.softcap);
  }
  float* stats = a.stats + 3 * row;
  stats[0] = all.max;
  stats[1] = all.sum;
  stats[2] = logit;
}

template <bool kVectors, bool kCapped>
__global__ void __launch_bounds__(kMaxThreads, 1) logit_gradient_kernel(const DividedArgs a) {
  wait_for_work_before();
  const std::int64_t row = blockIdx.x;
  Running all;
  float logit = -INFINITY;
  for (int rank = 0; rank < a.ranks; ++rank) {  // in rank order: the same sum on every rank
    const float* stats = a.stats + 3 * (rank * a.row.rows + row);
    all.join(stats[0], stats[1]);
    logit = fmaxf(logit, stats[2]);
  }
  const float weight = a.row.weights == nullptr ? 1.0f : a.row.weights[row];
  if (threadIdx.x == 0) a.row.loss[row] = (logf(all.sum) + all.max - logit) * weight;
  const float scale = a.row.scale * weight;
  const RowGradient gradient{all.max * kLog2E, scale / all.sum, scale,
                             static_cast<int>(a.row.targets[row] - a.first)};
  for (int col = static_cast<int>(threadIdx.x) * 8; col < a.row.cols;
       col += static_cast<int>(blockDim.x) * 8) {
    float x[8];
    unpack(x, load_logits<kVectors>(a.row, row, col));
    cap<kCapped>(x, a.row.softcap);
    store_gradient<kVectors, kCapped>(a.row, row, col, x, gradient, min(8, a.row.cols - col));
  }
}

/// Returns the arguments that both ops of a divided vocabulary have.
template <class Op>
DividedArgs divided_args(const Op& op) {
  return {.row = {.logits = op.logits.template as<std::uint16_t>(),
                  .targets = op.targets.template as<std::int32_t>(),
                  .rows = op.logits.rows,
                  .cols = static_cast<int>(op.logits.cols),
                  .softcap = op.softcap},
          .stats = op.stats.template as<float>(),
          .ranks = static_cast<int>(op.stats.size() / (3 * op.logits.rows)),
          .first = op.first};
}

/// Launches a kernel of a divided vocabulary, a block per row. kernel_of(vectors, capped): its instance.
template <class KernelOf>
void launch_divided(const DividedArgs& args, cudaStream_t stream, const KernelOf& kernel_of) {
  const int vectors = (args.row.cols + 7) / 8;
  const int threads = std::min(kMaxThreads, (vectors + kWarp - 1) / kWarp * kWarp);
  const auto with_capped = [&](auto aligned) {
    return args.row.softcap == 0 ? kernel_of(aligned, std::false_type())
                                 : kernel_of(aligned, std::true_type());
  };
  const auto kernel = args.row.cols % 8 == 0 ? with_capped(std::true_type()) : with_capped(std::false_type());
  kernel<<<static_cast<unsigned>(args.row.rows), threads, 0, stream>>>(args);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_logit_stats(const ops::LogitStats& op) {
  using namespace cuda;
  if (op.logits.rows == 0) return;
  launch_divided(divided_args(op), stream(), [](auto vectors, auto capped) {
    return logit_stats_kernel<decltype(vectors)::value, decltype(capped)::value>;
  });
  launched("logit_stats");
}

void CudaDevice::do_logit_gradient(const ops::LogitGradient& op) {
  using namespace cuda;
  if (op.logits.rows == 0) return;
  DividedArgs args = divided_args(op);
  args.row.loss = op.loss.as<float>();
  if (!op.weights.empty()) args.row.weights = op.weights.as<float>();
  args.row.scale = op.scale;
  launch_divided(args, stream(), [](auto vectors, auto capped) {
    return logit_gradient_kernel<decltype(vectors)::value, decltype(capped)::value>;
  });
  launched("logit_gradient");
}

void CudaDevice::do_cross_entropy(const ops::CrossEntropy& op) {
  using namespace cuda;
  if (op.logits.rows == 0) return;
  const int cols = static_cast<int>(op.logits.cols);
  const int vectors = (cols + 7) / 8;
  const int threads = std::min(kMaxThreads, (vectors + kWarp - 1) / kWarp * kWarp);
  const int slots = (vectors + threads - 1) / threads;
  int device = 0, shared_limit = 0;
  PRECBENCH_CHECK(cudaGetDevice(&device));
  PRECBENCH_CHECK(cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const int slot_bytes = threads * 16;
  const int kept = std::min(slots, (shared_limit - static_cast<int>(kWarp * sizeof(float2))) / slot_bytes);
  const bool aligned = cols % 8 == 0;
  const auto kernel_of = [&](auto capped) {
    return aligned ? cross_entropy_kernel<true, capped.value> : cross_entropy_kernel<false, capped.value>;
  };
  const auto kernel = op.softcap == 0 ? kernel_of(std::false_type()) : kernel_of(std::true_type());
  PRECBENCH_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kept * slot_bytes));
  int per_sm = 0;
  PRECBENCH_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, kept * slot_bytes));
  const int grid = static_cast<int>(std::min<std::int64_t>(op.logits.rows, per_sm * sm_count()));
  const Args args{op.loss.as<float>(),
                  op.logits.as<std::uint16_t>(),
                  op.targets.as<std::int32_t>(),
                  op.weights.empty() ? nullptr : op.weights.as<float>(),
                  op.logits.rows,
                  cols,
                  slots,
                  kept,
                  op.scale,
                  op.softcap};
  kernel<<<grid, threads, kept * slot_bytes, stream()>>>(args);
  launched("cross_entropy");
}

}  // namespace precbench
