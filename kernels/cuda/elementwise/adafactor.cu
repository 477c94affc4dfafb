// Adafactor: sums by row and column, averages, and two more passes over the gradient. The order of every sum
// is fixed: threads traverse a matrix as determined by its shape, in FP64, and blocks are added in order.
#include <algorithm>

#include "kernels/cuda/elementwise/weight_update.cuh"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/device/factored.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kFactorBlocksPerSm = 8;
constexpr std::int64_t kFewestRows = 32;  // per block that sums columns

struct FactorArgs {
  const float *rows, *cols, *row_mean;
};

FactorArgs factor_args(const FactoredMoment& moment) {
  return {moment.rows.as<float>(), moment.cols.as<float>(), moment.row_mean.as<float>()};
}

/// Elements of the factored second moment, with the lower bound eps^2.
struct SecondMoment {
  const float *rows, *cols;
  float least, mean;

  __device__ SecondMoment(const FactorArgs& a, float eps)
      : rows(a.rows), cols(a.cols), least(eps * eps), mean(a.rows ? fmaxf(*a.row_mean, eps) : 1.0f) {}
  __device__ float update(std::int64_t row, std::int64_t col, float g) const {
    const float moment = rows ? __fdiv_rn(rows[row] * cols[col], mean) : cols[col];
    return __fdiv_rn(g, __fsqrt_rn(fmaxf(moment, least)));
  }
};

/// One block per row of the part.
template <class Gradient>
__global__ void __launch_bounds__(kElementThreads)
    row_sums_kernel(float* rows, const Gradient* gradient, MatrixPart part) {
  wait_for_work_before();
  __shared__ double buffer[kWarp];
  const std::int64_t row = part.first_row() + blockIdx.x, end = part.end(row);
  double sum = 0;
  for (std::int64_t col = part.begin(row) + threadIdx.x; col < end; col += kElementThreads) {
    const double g = to_float(gradient[part.at(row) + col]);
    sum += g * g;
  }
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) rows[row] = static_cast<float>(sum);
}

/// partial [gridDim.y, cols]: one row per run of rows.
template <class Gradient>
__global__ void __launch_bounds__(kElementThreads)
    col_sums_kernel(double* partial, const Gradient* gradient, MatrixPart part, std::int64_t rows_per_run) {
  wait_for_work_before();
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (col >= part.cols) return;
  const std::int64_t end = part.first_row() + part.rows(),
                     from = part.first_row() + blockIdx.y * rows_per_run;
  const std::int64_t to = from + rows_per_run < end ? from + rows_per_run : end;
  double sum = 0;
  for (std::int64_t row = from; row < to; ++row) {
    if (col < part.begin(row) || col >= part.end(row)) continue;
    const double g = to_float(gradient[part.at(row) + col]);
    sum += g * g;
  }
  partial[blockIdx.y * part.cols + col] = sum;
}

__global__ void __launch_bounds__(kElementThreads)
    add_runs_kernel(float* cols, const double* partial, int runs, std::int64_t count) {
  wait_for_work_before();
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (col >= count) return;
  double sum = 0;
  for (int run = 0; run < runs; ++run) sum += partial[run * count + col];
  cols[col] = static_cast<float>(sum);
}

__global__ void __launch_bounds__(kElementThreads)
    average_kernel(float* average, const float* sums, std::int64_t count, float over,
                   const StepScalars* scalars, const float* norm_squared, float max_norm) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i >= count) return;
  const float clip = clip_factor(norm_squared, max_norm), part = scalars->bias_correction2;
  average[i] = moved_average(average[i], sums[i], __fdiv_rn(clip * clip, over), part);
}

__global__ void __launch_bounds__(kElementThreads)
    mean_kernel(float* out, const float* x, std::int64_t count) {
  wait_for_work_before();
  __shared__ double buffer[kWarp];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kElementThreads) sum += x[i];
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) *out = static_cast<float>(sum / static_cast<double>(count));
}

/// A block processes every gridDim-th row.
template <class Gradient>
__global__ void __launch_bounds__(kElementThreads)
    factored_norm_kernel(double* partial, FactorArgs moment, const Gradient* gradient, MatrixPart part,
                         const float* norm_squared, UpdateOptions o) {
  wait_for_work_before();
  __shared__ double buffer[kWarp];
  const SecondMoment second(moment, o.eps);
  const float clip = clip_factor(norm_squared, o.max_norm);
  const std::int64_t first = part.first_row(), last = first + part.rows();
  double sum = 0;
  for (std::int64_t row = first + blockIdx.x; row < last; row += gridDim.x)
    for (std::int64_t col = part.begin(row) + threadIdx.x; col < part.end(row); col += kElementThreads) {
      const double u = second.update(row, col, to_float(gradient[part.at(row) + col]) * clip);
      sum += u * u;
    }
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class Gradient>
__global__ void __launch_bounds__(kElementThreads)
    factored_update_kernel(const WeightArgs a, FactorArgs moment, const Gradient* gradient, MatrixPart part,
                           float size, const float* weight_squares, const float* update_squares) {
  wait_for_work_before();
  const StepScalars step = *a.scalars;
  const UpdateOptions& o = a.options;
  const SecondMoment second(moment, o.eps);
  const float clip = clip_factor(a.norm_squared, o.max_norm);
  const auto rms = [&](const float* squares) { return __fsqrt_rn(__fdiv_rn(*squares, size)); };
  const float rate = __fdiv_rn(fmaxf(kLeastWeightScale, rms(weight_squares)) * step.bias_correction1,
                               fmaxf(1.0f, rms(update_squares)));
  const float kept = 1 - step.lr * o.weight_decay;
  const std::int64_t first = part.first_row(), last = first + part.rows();
  for (std::int64_t row = first + blockIdx.x; row < last; row += gridDim.x)
    for (std::int64_t col = part.begin(row) + threadIdx.x; col < part.end(row); col += kElementThreads) {
      const std::int64_t i = part.at(row) + col;
      float w = a.master ? a.master[i] : to_float(a.weights[i]);
      w = w * kept - rate * second.update(row, col, to_float(gradient[i]) * clip);
      if (a.master) a.master[i] = w;
      if (!a.weights) continue;
      if (o.stochastic_rounding)
        a.weights[i] = bf16_encode_stochastic(w, random_bits(step.seed, o.index.first + i));
      else
        from_float(a.weights[i], w);
    }
}

unsigned column_blocks(std::int64_t cols) {
  return static_cast<unsigned>((cols + kElementThreads - 1) / kElementThreads);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_factored_sums(const ops::FactoredSums& op) {
  using namespace cuda;
  const MatrixPart part{op.first, op.gradient.size(), op.cols.size()};
  const std::int64_t across = column_blocks(part.cols);
  const std::int64_t wanted = std::max<std::int64_t>(1, kFactorBlocksPerSm * sm_count() / across);
  const std::int64_t rows_per_run = std::max(kFewestRows, (part.rows() + wanted - 1) / wanted);
  const std::int64_t runs = (part.rows() + rows_per_run - 1) / rows_per_run;
  auto* partial = static_cast<double*>(scratch(static_cast<std::size_t>(runs * part.cols) * sizeof(double)));
  if (!op.rows.empty()) PRECBENCH_CHECK(cudaMemsetAsync(op.rows.data, 0, op.rows.bytes(), stream()));
  if (part.count > 0)
    with_type(op.gradient.dtype, [&](auto grad) {
      const auto* gradient = op.gradient.as<decltype(grad)>();
      if (!op.rows.empty())
        row_sums_kernel<<<static_cast<unsigned>(part.rows()), kElementThreads, 0, stream()>>>(
            op.rows.as<float>(), gradient, part);
      const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(runs));
      col_sums_kernel<<<grid, kElementThreads, 0, stream()>>>(partial, gradient, part, rows_per_run);
    });
  add_runs_kernel<<<static_cast<unsigned>(across), kElementThreads, 0, stream()>>>(
      op.cols.as<float>(), partial, static_cast<int>(runs), part.cols);
  launched("factored_sums");
}

void CudaDevice::do_factored_average(const ops::FactoredAverage& op) {
  using namespace cuda;
  const auto average = [&](const Tensor& moment, const Tensor& sums, std::int64_t over) {
    average_kernel<<<column_blocks(moment.size()), kElementThreads, 0, stream()>>>(
        moment.as<float>(), sums.as<float>(), moment.size(), static_cast<float>(over),
        op.scalars.as<StepScalars>(), op.norm_squared.as<float>(), op.max_norm);
  };
  const FactoredMoment& moment = op.moment;
  average(moment.cols, op.col_sums, moment.rows.empty() ? 1 : moment.rows.size());
  if (!moment.rows.empty()) {
    average(moment.rows, op.row_sums, moment.cols.size());
    mean_kernel<<<1, kElementThreads, 0, stream()>>>(moment.row_mean.as<float>(), moment.rows.as<float>(),
                                                     moment.rows.size());
  }
  launched("factored_average");
}

void CudaDevice::do_factored_norm(const ops::FactoredNorm& op) {
  using namespace cuda;
  const MatrixPart part{op.first, op.gradient.size(), op.moment.cols.size()};
  const int blocks = sm_count() * kFactorBlocksPerSm;
  auto* partial = static_cast<double*>(scratch(blocks * sizeof(double)));
  with_type(op.gradient.dtype, [&](auto grad) {
    factored_norm_kernel<<<blocks, kElementThreads, 0, stream()>>>(partial, factor_args(op.moment),
                                                                   op.gradient.as<decltype(grad)>(), part,
                                                                   op.norm_squared.as<float>(), op.options);
  });
  sum_stage2(op.out.as<float>(), partial, blocks, false, stream());
  launched("factored_norm");
}

void CudaDevice::do_factored_update(const ops::FactoredUpdate& op) {
  using namespace cuda;
  const MatrixPart part{op.first, op.gradient.size(), op.moment.cols.size()};
  check_consecutive(op.options);
  const WeightArgs args = weight_args(op, op.norm_squared, false);
  if (args.size > 0) {
    const auto blocks =
        static_cast<unsigned>(std::min<std::int64_t>(part.rows(), sm_count() * kFactorBlocksPerSm));
    with_type(op.gradient.dtype, [&](auto grad) {
      factored_update_kernel<<<blocks, kElementThreads, 0, stream()>>>(
          args, factor_args(op.moment), op.gradient.as<decltype(grad)>(), part,
          static_cast<float>(op.moment.size()), op.weight_squares.as<float>(), op.update_squares.as<float>());
    });
  }
  launched("factored_update");
}

}  // namespace precbench
