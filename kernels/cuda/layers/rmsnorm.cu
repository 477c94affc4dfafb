// RMSNorm: h = x * rstd * (weight + gain_offset) with the residual addition before it: forward, recomputation, and
// backward.
//
// Forward and backward reduce over a row, so a block holds one row in registers (row.cuh) and its grid is
// persistent: the gains are loaded once, and dweight is summed in shared memory over the block's rows, then
// over blocks in order. Quantized copies that need more than one row (columnwise, or a per-tensor scale) are
// cast by cast_tiles: from h if it is written anyway, else from h recomputed from the kept sum. Bytes per
// element: forward 4 read (2 without a branch) and 2 written for the sum, backward 6 read and 2 written; plus
// the copies, and 2 read per further pass. A kept input (kept_input.cuh) is 1 1/16: written by forward, and read in
// place of the sum by further passes and backward.
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/layers/norm.cuh"
#include "kernels/cuda/quantize/kept_input.cuh"

namespace precbench {
namespace cuda {

namespace {

/// The only definition of h, so that it is the same in every pass.
__device__ inline Bf16x8 normalize(const Bf16x8& x, float rstd, const Bf16x8& weight, float offset) {
  Bf16x8 h;
#pragma unroll
  for (int p = 0; p < 4; ++p)
    h.pair[p] = pack(low(x.pair[p]) * rstd * (low(weight.pair[p]) + offset),
                     high(x.pair[p]) * rstd * (high(weight.pair[p]) + offset));
  return h;
}

template <class Input>
struct NormSource {
  static constexpr int kOutputs = 1, kBatch = 4;
  struct Column {
    Bf16x8 weight;
  };
  struct Raw {
    typename Input::Raw x;
    float rstd;
  };
  Input sum;
  Matrix weight;
  const float* rstd;
  float offset;
  std::int64_t rows = sum.rows, cols = sum.cols;

  bool vectors() const { return sum.vectors && weight.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t col) const {
    return {load<kFull>(weight, 0, col)};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return {sum.template fetch<kFull>(row, col), kFull || row < rows ? rstd[row] : 0.0f};
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column& column, std::int64_t row,
                       std::int64_t col) const {
    out[0] = normalize(sum.value(raw.x, row, col), raw.rstd, column.weight, offset);
  }
};

struct NormArgs {
  const std::uint16_t *x, *branch, *weight;  // branch may be null
  std::uint16_t* sum;                        // written if there is a branch
  float* rstd;
  std::int64_t rows, cols;
  float eps, offset;
};

/// Kept: NotKept, or the KeptInput that the sum becomes.
template <int kVectors, class Kept>
__global__ void __launch_bounds__(kRowThreads, kVectors == 2 ? 2 : 1)
    add_rmsnorm_kernel(const NormArgs a, const TileOutput out, const Kept kept) {
  wait_for_work_before();
  __shared__ float sums[2][kWarp];
  __shared__ std::uint32_t maxima[kWarp];
  RowWriter<kVectors> writer(out, a.cols);
  Bf16x8 weight[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (writer.col(v) < a.cols) weight[v] = load_vector(a.weight + writer.col(v));
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
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (a.branch) {
#pragma unroll
        for (int p = 0; p < 4; ++p)
          x[v].pair[p] =
              pack(low(x[v].pair[p]) + low(branch[v].pair[p]), high(x[v].pair[p]) + high(branch[v].pair[p]));
        if (writer.col(v) < a.cols) store_vector(a.sum + first + writer.col(v), x[v]);
      }
      x[v] = kept.keep(row, writer.col(v), x[v], writer.col(v) < a.cols);
#pragma unroll
      for (int p = 0; p < 4; ++p)
        squares += low(x[v].pair[p]) * low(x[v].pair[p]) + high(x[v].pair[p]) * high(x[v].pair[p]);
    }
    const float mean = block_sum(squares, sums[buffer]) / static_cast<float>(a.cols);
    const float rstd = 1.0f / sqrtf(mean + a.eps);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) stay_packed(x[v]), stay_packed(weight[v]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) x[v] = normalize(x[v], rstd, weight[v], a.offset);
    writer.write(row, x, maxima);
  }
  writer.finish(maxima);
}

struct NormBackwardArgs {
  const std::uint16_t *dresidual, *dh, *x, *weight;  // dresidual may be null
  const float* rstd;
  float* partial;  // [blocks, cols] partial sums of dweight
  std::int64_t rows, cols;
  float offset;
};

/// Kept: NotKept, or the KeptInput that is read in place of x.
template <int kVectors, class Kept>
__global__ void __launch_bounds__(kRowThreads, kVectors == 2 ? 2 : 1)
    rmsnorm_backward_kernel(const NormBackwardArgs a, const TileOutput out, const Kept kept) {
  wait_for_work_before();
  __shared__ float dots[2][kWarp];
  __shared__ std::uint32_t maxima[kWarp];
  // dweight's sums, which do not fit in registers, [2 kVectors][threads] of 4 elements, each thread's own.
  extern __shared__ float4 shared[];
  float4* sums = shared + threadIdx.x;
  RowWriter<kVectors> writer(out, a.cols);
  Bf16x8 weight[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    sums[2 * v * blockDim.x] = sums[(2 * v + 1) * blockDim.x] = make_float4(0, 0, 0, 0);
    if (writer.col(v) < a.cols) weight[v] = load_vector(a.weight + writer.col(v));
  }
  int buffer = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, buffer ^= 1) {
    const std::int64_t first = row * a.cols;
    Bf16x8 dh[kVectors] = {}, x[kVectors] = {}, residual[kVectors] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (writer.col(v) >= a.cols) continue;
      dh[v] = load_vector(a.dh + first + writer.col(v));
      x[v] = kept.read(row, writer.col(v), a.x + first + writer.col(v));
      if (a.dresidual) residual[v] = load_vector(a.dresidual + first + writer.col(v));
    }
    const float rstd = a.rstd[row];
    float dot = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int p = 0; p < 4; ++p)
        dot += low(dh[v].pair[p]) * (low(weight[v].pair[p]) + a.offset) * low(x[v].pair[p]) +
               high(dh[v].pair[p]) * (high(weight[v].pair[p]) + a.offset) * high(x[v].pair[p]);
    const float mean = block_sum(dot, dots[buffer]) * rstd / static_cast<float>(a.cols);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) stay_packed(x[v]), stay_packed(dh[v]), stay_packed(weight[v]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4& sum = sums[(2 * v + half) * blockDim.x];
        float4 total = sum;
#pragma unroll
        for (int p = 2 * half; p < 2 * half + 2; ++p) {
          const float n0 = low(x[v].pair[p]) * rstd, n1 = high(x[v].pair[p]) * rstd;
          const float g0 = low(dh[v].pair[p]), g1 = high(dh[v].pair[p]);
          (p % 2 ? total.z : total.x) += g0 * n0;
          (p % 2 ? total.w : total.y) += g1 * n1;
          const float w0 = low(weight[v].pair[p]) + a.offset, w1 = high(weight[v].pair[p]) + a.offset;
          x[v].pair[p] = pack(low(residual[v].pair[p]) + rstd * (g0 * w0 - n0 * mean),
                              high(residual[v].pair[p]) + rstd * (g1 * w1 - n1 * mean));
        }
        sum = total;
      }
    writer.write(row, x, maxima);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (writer.col(v) < a.cols) {
      auto* dweight = reinterpret_cast<float4*>(a.partial + blockIdx.x * a.cols + writer.col(v));
      dweight[0] = sums[2 * v * blockDim.x];
      dweight[1] = sums[(2 * v + 1) * blockDim.x];
    }
  writer.finish(maxima);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_add_rmsnorm(const ops::AddRmsnorm& op) {
  using namespace cuda;
  const NormArgs args{op.x.as<std::uint16_t>(),
                      op.branch.as<std::uint16_t>(),
                      op.weight.as<std::uint16_t>(),
                      op.branch.empty() ? nullptr : op.sum.as<std::uint16_t>(),
                      op.rstd.as<float>(),
                      op.x.rows,
                      op.x.cols,
                      op.eps,
                      op.gain_offset};
  const auto run = [&](const auto& sum, const auto& kept) {
    const NormSource<std::decay_t<decltype(sum)>> source{sum, matrix(op.weight), op.rstd.as<float>(),
                                                         op.gain_offset};
    run_norm(
        *this, op, args, source,
        [](auto vectors) { return add_rmsnorm_kernel<vectors, std::decay_t<decltype(kept)>>; }, kept);
  };
  if (op.kept.empty()) {
    run(PlainInput{matrix(op.branch.empty() ? op.x : op.sum)}, NotKept());
  } else {
    clear_padding(op.kept, stream());
    const KeptInput kept(op.kept, 0, op.x.cols);
    run(kept, kept);
  }
  launched("add_rmsnorm");
}

void CudaDevice::do_recompute_rmsnorm(const ops::RecomputeRmsnorm& op) {
  using namespace cuda;
  produce_operand(
      *this, NormSource<PlainInput>{{matrix(op.sum)}, matrix(op.weight), op.rstd.as<float>(), op.gain_offset},
      op.h);
  launched("recompute_rmsnorm");
}

void CudaDevice::do_rmsnorm_backward(const ops::RmsnormBackward& op) {
  using namespace cuda;
  const NormBackwardArgs args{op.dresidual.as<std::uint16_t>(),
                              op.dh.as<std::uint16_t>(),
                              op.x.as<std::uint16_t>(),
                              op.weight.as<std::uint16_t>(),
                              op.rstd.as<float>(),
                              nullptr,
                              op.dh.rows,
                              op.dh.cols,
                              op.gain_offset};
  const RowShape shape = row_shape(op.dh.cols);
  const auto run = [&](const auto& kept) {
    with_vectors(shape, [&](auto vectors) {
      run_norm_backward<vectors, 1>(*this, op, args, {}, shape,
                                    rmsnorm_backward_kernel<vectors, std::decay_t<decltype(kept)>>, kept);
    });
  };
  if (op.kept.empty())
    run(NotKept());
  else
    run(KeptInput(op.kept, 0, op.dh.cols));
  quantize_from_value(*this, op.dx);
  launched("rmsnorm_backward");
}

}  // namespace precbench
