// LayerNorm: h = (x - mean) * rstd * (weight + gain_offset) + bias with the residual addition before it: forward,
// recomputation, and backward. Rows, passes and sums are those of rmsnorm.cu. The variance is that of the
// deviations from the mean, which costs a second sum over the row in registers. Bytes per element are RMSNorm's.
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/layers/norm.cuh"

namespace precbench {
namespace cuda {

namespace {

/// The only definition of h, so that it is the same in every pass. Without a bias, `bias` is 0.
__device__ inline Bf16x8 layer_normalize(const Bf16x8& x, float mean, float rstd, const Bf16x8& weight,
                                         const Bf16x8& bias, float offset) {
  Bf16x8 h;
#pragma unroll
  for (int p = 0; p < 4; ++p)
    h.pair[p] = pack((low(x.pair[p]) - mean) * rstd * (low(weight.pair[p]) + offset) + low(bias.pair[p]),
                     (high(x.pair[p]) - mean) * rstd * (high(weight.pair[p]) + offset) + high(bias.pair[p]));
  return h;
}

struct LayernormSource {
  static constexpr int kOutputs = 1, kBatch = 2;  // the columns take twice the registers of RMSNorm
  struct Column {
    Bf16x8 weight, bias;
  };
  struct Raw {
    Bf16x8 x;
    float mean, rstd;
  };
  Matrix sum, weight, bias;  // bias may be absent
  const float *mean, *rstd;
  float offset;
  std::int64_t rows = sum.rows, cols = sum.cols;

  bool vectors() const { return sum.vectors && weight.vectors && (!bias.data || bias.vectors); }
  template <bool kFull>
  __device__ Column column(std::int64_t col) const {
    Column c{load<kFull>(weight, 0, col), bias.data ? load<kFull>(bias, 0, col) : Bf16x8{}};
    if (kFull) return c;
      // Beyond the row h must be 0, or it enters the amaxes: x - mean is not, so the gain has to be.
#pragma unroll
    for (int p = 0; p < 4; ++p)
      c.weight.pair[p] = pack(col + 2 * p < cols ? low(c.weight.pair[p]) : -offset,
                              col + 2 * p + 1 < cols ? high(c.weight.pair[p]) : -offset);
    return c;
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const bool inside = kFull || row < rows;
    return {load<kFull>(sum, row, col), inside ? mean[row] : 0.0f, inside ? rstd[row] : 0.0f};
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column& column, std::int64_t row,
                       std::int64_t) const {
    // Rows beyond the matrix must not enter the amaxes with the bias.
    out[0] = row < rows ? layer_normalize(raw.x, raw.mean, raw.rstd, column.weight, column.bias, offset)
                        : Bf16x8{};
  }
};

struct LayernormArgs {
  const std::uint16_t *x, *branch, *weight, *bias;  // branch and bias may be null
  std::uint16_t* sum;                               // written if there is a branch
  float *mean, *rstd;
  std::int64_t rows, cols;
  float eps, offset;
};

template <int kVectors>
__global__ void __launch_bounds__(kRowThreads, kVectors == 2 ? 2 : 1)
    add_layernorm_kernel(const LayernormArgs a, const TileOutput out) {
  wait_for_work_before();
  __shared__ float sums[2][2][kWarp];
  __shared__ std::uint32_t maxima[kWarp];
  RowWriter<kVectors> writer(out, a.cols);
  Bf16x8 weight[kVectors] = {}, bias[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (writer.col(v) >= a.cols) continue;
    weight[v] = load_vector(a.weight + writer.col(v));
    if (a.bias) bias[v] = load_vector(a.bias + writer.col(v));
  }
  int buffer = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, buffer ^= 1) {
    const std::int64_t first = row * a.cols;
    Bf16x8 x[kVectors] = {}, branch[kVectors] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (writer.col(v) >= a.cols) continue;
      x[v] = load_vector(a.x + first + writer.col(v));
      if (a.branch) branch[v] = load_vector(a.branch + first + writer.col(v));
    }
    float total = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (a.branch) {
#pragma unroll
        for (int p = 0; p < 4; ++p)
          x[v].pair[p] =
              pack(low(x[v].pair[p]) + low(branch[v].pair[p]), high(x[v].pair[p]) + high(branch[v].pair[p]));
        if (writer.col(v) < a.cols) store_vector(a.sum + first + writer.col(v), x[v]);
      }
#pragma unroll
      for (int p = 0; p < 4; ++p) total += low(x[v].pair[p]) + high(x[v].pair[p]);
    }
    const float mean = block_sum(total, sums[buffer][0]) / static_cast<float>(a.cols);
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (writer.col(v) >= a.cols) continue;  // vectors outside the row deviate from the mean
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float d0 = low(x[v].pair[p]) - mean, d1 = high(x[v].pair[p]) - mean;
        squares += d0 * d0 + d1 * d1;
      }
    }
    const float variance = block_sum(squares, sums[buffer][1]) / static_cast<float>(a.cols);
    const float rstd = 1.0f / sqrtf(variance + a.eps);
    if (threadIdx.x == 0) a.mean[row] = mean, a.rstd[row] = rstd;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) stay_packed(x[v]), stay_packed(weight[v]), stay_packed(bias[v]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      x[v] =
          writer.col(v) < a.cols ? layer_normalize(x[v], mean, rstd, weight[v], bias[v], a.offset) : Bf16x8{};
    writer.write(row, x, maxima);
  }
  writer.finish(maxima);
}

struct LayernormBackwardArgs {
  const std::uint16_t *dresidual, *dh, *x, *weight;  // dresidual may be null
  const float *mean, *rstd;
  float* partial;  // [blocks, cols] partial sums of dweight, with a bias [blocks, 2, cols]
  std::int64_t rows, cols;
  float offset;
};

template <int kVectors, bool kBias>
__global__ void __launch_bounds__(kRowThreads, kVectors == 2 ? 2 : 1)
    layernorm_backward_kernel(const LayernormBackwardArgs a, const TileOutput out) {
  wait_for_work_before();
  constexpr int kSums = kBias ? 2 : 1;
  __shared__ float dots[2][2][kWarp];
  __shared__ std::uint32_t maxima[kWarp];
  // Sums of dweight and dbias, which do not fit in registers, [kSums][2 kVectors][threads] of 4 elements, each
  // thread's own.
  extern __shared__ float4 shared[];
  float4* sums = shared + threadIdx.x;
  const int of_bias = 2 * kVectors;
  RowWriter<kVectors> writer(out, a.cols);
  Bf16x8 weight[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (writer.col(v) < a.cols) weight[v] = load_vector(a.weight + writer.col(v));
#pragma unroll
  for (int i = 0; i < kSums * 2 * kVectors; ++i) sums[i * blockDim.x] = make_float4(0, 0, 0, 0);
  int buffer = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, buffer ^= 1) {
    const std::int64_t first = row * a.cols;
    Bf16x8 dh[kVectors] = {}, x[kVectors] = {}, residual[kVectors] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (writer.col(v) >= a.cols) continue;
      dh[v] = load_vector(a.dh + first + writer.col(v));
      x[v] = load_vector(a.x + first + writer.col(v));
      if (a.dresidual) residual[v] = load_vector(a.dresidual + first + writer.col(v));
    }
    const float mean = a.mean[row], rstd = a.rstd[row];
    float level = 0, along = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float g0 = low(dh[v].pair[p]) * (low(weight[v].pair[p]) + a.offset);
        const float g1 = high(dh[v].pair[p]) * (high(weight[v].pair[p]) + a.offset);
        level += g0 + g1;
        along += g0 * (low(x[v].pair[p]) - mean) + g1 * (high(x[v].pair[p]) - mean);
      }
    level = block_sum(level, dots[buffer][0]) / static_cast<float>(a.cols);
    along = block_sum(along, dots[buffer][1]) * rstd / static_cast<float>(a.cols);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) stay_packed(x[v]), stay_packed(dh[v]), stay_packed(weight[v]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4& sum = sums[(2 * v + half) * blockDim.x];
        float4 total = sum, total_bias = {};
        if (kBias) total_bias = sums[(of_bias + 2 * v + half) * blockDim.x];
        const bool inside = writer.col(v) < a.cols;
#pragma unroll
        for (int p = 2 * half; p < 2 * half + 2; ++p) {
          const float n0 = (low(x[v].pair[p]) - mean) * rstd, n1 = (high(x[v].pair[p]) - mean) * rstd;
          const float g0 = low(dh[v].pair[p]), g1 = high(dh[v].pair[p]);
          (p % 2 ? total.z : total.x) += g0 * n0;
          (p % 2 ? total.w : total.y) += g1 * n1;
          if (kBias) {
            (p % 2 ? total_bias.z : total_bias.x) += g0;
            (p % 2 ? total_bias.w : total_bias.y) += g1;
          }
          const float w0 = low(weight[v].pair[p]) + a.offset, w1 = high(weight[v].pair[p]) + a.offset;
          x[v].pair[p] = inside ? pack(low(residual[v].pair[p]) + rstd * (g0 * w0 - level - n0 * along),
                                       high(residual[v].pair[p]) + rstd * (g1 * w1 - level - n1 * along))
                                : 0u;
        }
        sum = total;
        if (kBias) sums[(of_bias + 2 * v + half) * blockDim.x] = total_bias;
      }
    writer.write(row, x, maxima);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (writer.col(v) >= a.cols) continue;
#pragma unroll
    for (int which = 0; which < kSums; ++which) {
      auto* to = reinterpret_cast<float4*>(a.partial + (blockIdx.x * kSums + which) * a.cols + writer.col(v));
      to[0] = sums[(which * of_bias + 2 * v) * blockDim.x];
      to[1] = sums[(which * of_bias + 2 * v + 1) * blockDim.x];
    }
  }
  writer.finish(maxima);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_add_layernorm(const ops::AddLayernorm& op) {
  using namespace cuda;
  const LayernormArgs args{op.x.as<std::uint16_t>(),
                           op.branch.as<std::uint16_t>(),
                           op.weight.as<std::uint16_t>(),
                           op.bias.as<std::uint16_t>(),
                           op.branch.empty() ? nullptr : op.sum.as<std::uint16_t>(),
                           op.mean.as<float>(),
                           op.rstd.as<float>(),
                           op.x.rows,
                           op.x.cols,
                           op.eps,
                           op.gain_offset};
  const LayernormSource source{matrix(op.branch.empty() ? op.x : op.sum),
                               matrix(op.weight),
                               matrix(op.bias),
                               op.mean.as<float>(),
                               op.rstd.as<float>(),
                               op.gain_offset};
  run_norm(*this, op, args, source, [](auto vectors) { return add_layernorm_kernel<vectors>; });
  launched("add_layernorm");
}

void CudaDevice::do_recompute_layernorm(const ops::RecomputeLayernorm& op) {
  using namespace cuda;
  const LayernormSource source{matrix(op.sum),      matrix(op.weight),   matrix(op.bias),
                               op.mean.as<float>(), op.rstd.as<float>(), op.gain_offset};
  produce_operand(*this, source, op.h);
  launched("recompute_layernorm");
}

void CudaDevice::do_layernorm_backward(const ops::LayernormBackward& op) {
  using namespace cuda;
  const LayernormBackwardArgs args{op.dresidual.as<std::uint16_t>(),
                                   op.dh.as<std::uint16_t>(),
                                   op.x.as<std::uint16_t>(),
                                   op.weight.as<std::uint16_t>(),
                                   op.mean.as<float>(),
                                   op.rstd.as<float>(),
                                   nullptr,
                                   op.x.rows,
                                   op.x.cols,
                                   op.gain_offset};
  const RowShape shape = row_shape(op.x.cols);
  with_vectors(shape, [&](auto vectors) {
    if (op.dbias.empty())
      run_norm_backward<vectors, 1>(*this, op, args, {}, shape, layernorm_backward_kernel<vectors, false>);
    else
      run_norm_backward<vectors, 2>(*this, op, args, op.dbias, shape,
                                    layernorm_backward_kernel<vectors, true>);
  });
  quantize_from_value(*this, op.dx);
  launched("layernorm_backward");
}

}  // namespace precbench
