// Attention sinks and merges of attention over parts of the keys, whatever implementation of attention computed the rest:
// a pass over its output, and a sum over tokens for the sinks' gradient. Bytes per element of the output: sinks 2 read and 2
// written, backward 4 read; merges 6 read and 4 written.
#include <algorithm>
#include <bit>

#include "kernels/base/errors.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/row.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kSinkThreads = 256;
constexpr std::int64_t kFewestSinkRows = 64;  // per run: fewer are not worth a partial sum

struct SinkArgs {
  std::uint16_t* out;
  float* lse;
  const std::uint16_t* sinks;
  std::int64_t T;
  int heads, head_dim;
};

/// Returns log(exp(a) + exp(b)); one of them may be -infinity.
__device__ inline float log_sum_exp(float a, float b) {
  const float largest = fmaxf(a, b);
  return largest + log1pf(expf(fminf(a, b) - largest));
}

/// One block per token. Its threads have read all logarithms before some change them.
__global__ void __launch_bounds__(kSinkThreads) attention_sink_kernel(const SinkArgs a) {
  wait_for_work_before();
  const std::int64_t row = blockIdx.x;
  const int width = a.heads * a.head_dim;
  float* const lse = a.lse + row / a.T * a.heads * a.T + row % a.T;
  for (int col = threadIdx.x * 8; col < width; col += kSinkThreads * 8) {
    const int head = col / a.head_dim;
    const float share = 1.0f / (1.0f + expf(to_float(a.sinks[head]) - lse[head * a.T]));
    float x[8];
    load_vector(x, a.out + row * width + col);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] *= share;
    store_vector(a.out + row * width + col, x);
  }
  __syncthreads();
  for (int head = threadIdx.x; head < a.heads; head += kSinkThreads) {
    lse[head * a.T] = log_sum_exp(lse[head * a.T], to_float(a.sinks[head]));
  }
}

struct MergeArgs {
  float *out, *lse;
  const std::uint16_t* part;
  const float* part_lse;
  std::int64_t T;
  int heads, head_dim;
};

/// One block per token. Its threads have read all logarithms before some change them.
__global__ void __launch_bounds__(kSinkThreads) merge_attention_kernel(const MergeArgs a) {
  wait_for_work_before();
  const std::int64_t row = blockIdx.x, logarithms = row / a.T * a.heads * a.T + row % a.T;
  const int width = a.heads * a.head_dim;
  float* const lse = a.lse + logarithms;
  const float* const part_lse = a.part_lse + logarithms;
  for (int col = threadIdx.x * 8; col < width; col += kSinkThreads * 8) {
    const std::int64_t head = col / a.head_dim;
    const float above = part_lse[head * a.T] - lse[head * a.T];
    const float kept = 1.0f / (1.0f + expf(above)), added = 1.0f / (1.0f + expf(-above));
    float part[8], out[8];
    load_vector(part, a.part + row * width + col);
    load_vector(out, a.out + row * width + col);
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j] = fmaf(added, part[j], kept * out[j]);
    store_vector(a.out + row * width + col, out);
  }
  __syncthreads();
  for (int head = threadIdx.x; head < a.heads; head += kSinkThreads)
    lse[head * a.T] = log_sum_exp(lse[head * a.T], part_lse[head * a.T]);
}

struct SinkBackwardArgs {
  float* partial;  // [runs, heads]
  const std::uint16_t *dout, *out, *sinks;
  const float* lse;
  std::int64_t rows, rows_per_run, T;
  int heads, head_dim, lanes;  // lanes: of one head, a power of two
};

/// 8 columns per lane; a warp has 32 / lanes heads in one run of rows.
__global__ void __launch_bounds__(kSinkThreads) attention_sink_backward_kernel(const SinkBackwardArgs a) {
  wait_for_work_before();
  const int thread = blockIdx.x * kSinkThreads + threadIdx.x;
  const int head = thread / a.lanes, col = thread % a.lanes * 8;
  const std::int64_t width = std::int64_t{a.heads} * a.head_dim;
  const std::int64_t first = blockIdx.y * a.rows_per_run;
  const std::int64_t last = first + a.rows_per_run < a.rows ? first + a.rows_per_run : a.rows;
  float sum = 0;
  if (head < a.heads && col < a.head_dim) {
    const float sink = to_float(a.sinks[head]);
#pragma unroll 4
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t at = row * width + head * a.head_dim + col;
      float x[8], y[8], dot = 0;
      load_vector(x, a.dout + at);
      load_vector(y, a.out + at);
#pragma unroll
      for (int j = 0; j < 8; ++j) dot = fmaf(x[j], y[j], dot);
      sum -= expf(sink - a.lse[(row / a.T * a.heads + head) * a.T + row % a.T]) * dot;
    }
  }
  for (int step = 1; step < a.lanes; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (head < a.heads && col == 0) a.partial[blockIdx.y * a.heads + head] = sum;
}

void check_head(const AttentionShape& shape) {
  if (shape.head_dim % 8 != 0 || shape.head_dim > 8 * kWarp)
    throw Unsupported("the CUDA device has attention sinks for heads of a multiple of 8 elements, up to 256");
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_attention_sink(const ops::AttentionSink& op) {
  using namespace cuda;
  check_head(op.shape);
  attention_sink_kernel<<<static_cast<unsigned>(op.shape.tokens()), kSinkThreads, 0, stream()>>>(
      {op.out.as<std::uint16_t>(), op.lse.as<float>(), op.sink.as<std::uint16_t>(), op.shape.T,
       static_cast<int>(op.shape.heads), static_cast<int>(op.shape.head_dim)});
  launched("attention_sink");
}

void CudaDevice::do_merge_attention(const ops::MergeAttention& op) {
  using namespace cuda;
  if (op.shape.v_dim() % 8 != 0 || op.part.dtype != DType::bf16)
    throw Unsupported(
        "merge_attention: the CUDA device takes BF16 parts in heads of a multiple of 8 elements");
  merge_attention_kernel<<<static_cast<unsigned>(op.shape.tokens()), kSinkThreads, 0, stream()>>>(
      {op.out.as<float>(), op.lse.as<float>(), op.part.as<std::uint16_t>(), op.part_lse.as<float>(),
       op.shape.T, static_cast<int>(op.shape.heads), static_cast<int>(op.shape.v_dim())});
  launched("merge_attention");
}

void CudaDevice::do_attention_sink_backward(const ops::AttentionSinkBackward& op) {
  using namespace cuda;
  check_head(op.shape);
  const std::int64_t M = op.shape.tokens(), H = op.shape.heads;
  const int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(op.shape.head_dim / 8)));
  const std::int64_t across = (H * lanes + kSinkThreads - 1) / kSinkThreads;
  const std::int64_t wanted = std::max<std::int64_t>(1, 4 * sm_count() / across);
  const std::int64_t rows_per_run = std::max(kFewestSinkRows, (M + wanted - 1) / wanted);
  const std::int64_t runs = (M + rows_per_run - 1) / rows_per_run;
  auto* partial = static_cast<float*>(scratch(static_cast<std::size_t>(runs * H) * sizeof(float)));
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(runs));
  attention_sink_backward_kernel<<<grid, kSinkThreads, 0, stream()>>>(
      {partial, op.dout.as<std::uint16_t>(), op.out.as<std::uint16_t>(), op.sink.as<std::uint16_t>(),
       op.lse.as<float>(), M, rows_per_run, op.shape.T, static_cast<int>(H),
       static_cast<int>(op.shape.head_dim), lanes});
  sum_rows(op.dsink, partial, static_cast<int>(runs), H, op.accumulate, stream());
  launched("attention_sink_backward");
}

}  // namespace precbench
