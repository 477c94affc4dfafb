// LayerNorm (Ba et al. 2016) with the residual addition before it: h = (x - mean) / sqrt(variance + eps) * weight +
// bias. Each iteration handles one row; the gradients of weight and bias are summed over fixed runs of rows, and the
// runs in order.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/norm_rows.h"

namespace precbench {

void CpuDevice::do_add_layernorm(const ops::AddLayernorm& op) {
  const std::int64_t C = op.x.cols;
  cpu::for_rows(threads_, op.x.rows, 2 * C, [&](std::int64_t r, float* buffer) {
    const float* row = cpu::norm_input(op, r, buffer);
    const auto width = static_cast<float>(C);
    const float mean = cpu::lane_sum(C, [&](std::int64_t c) { return row[c]; }) / width;
    const float variance =
        cpu::lane_accumulate(
            C, [&](std::int64_t c, float sum) { return multiply_add(row[c] - mean, row[c] - mean, sum); }) /
        width;
    op.mean.as<float>()[r] = mean;
    op.rstd.as<float>()[r] = 1.0f / std::sqrt(variance + op.eps);
  });
  do_recompute_layernorm(
      {op.h, op.branch.empty() ? op.x : op.sum, op.mean, op.rstd, op.weight, op.bias, op.gain_offset});
}

void CpuDevice::do_recompute_layernorm(const ops::RecomputeLayernorm& op) {
  const std::int64_t C = op.sum.cols;
  const std::vector<float> gain = cpu::loaded_row(op.weight, C, op.gain_offset),
                           bias = cpu::loaded_row(op.bias, C, 0);
  cpu::for_rows(threads_, op.sum.rows, 2 * C, [&](std::int64_t r, float* buffer) {
    const float* row = cpu::load(op.sum, r * C, C, buffer);
    const float mean = op.mean.as<float>()[r], scale = op.rstd.as<float>()[r];
    float* out = buffer + C;
    for (std::int64_t c = 0; c < C; ++c) out[c] = multiply_add((row[c] - mean) * scale, gain[c], bias[c]);
    cpu::store(op.h.value, r * C, C, out);
  });
  do_quantize({op.h});
}

void CpuDevice::do_layernorm_backward(const ops::LayernormBackward& op) {
  const std::int64_t C = op.x.cols, M = op.x.rows;
  constexpr std::int64_t kRun = 64;
  const std::int64_t runs = (M + kRun - 1) / kRun;
  const std::vector<float> gain = cpu::loaded_row(op.weight, C, op.gain_offset);
  std::vector<float> partial(runs * 2 * C);
  cpu::for_rows(threads_, runs, 4 * C, [&](std::int64_t run, float* buffer) {
    float* dgain = partial.data() + run * 2 * C;
    float* dbias = dgain + C;
    for (std::int64_t r = run * kRun; r < std::min(M, (run + 1) * kRun); ++r) {
      const float* row = cpu::load(op.x, r * C, C, buffer);
      const float* grad = cpu::load(op.dh, r * C, C, buffer + C);
      const float mean = op.mean.as<float>()[r], scale = op.rstd.as<float>()[r];
      const auto width = static_cast<float>(C);
      const float level = cpu::lane_dot(C, grad, gain.data()) / width;
      const float along = cpu::lane_accumulate(C,
                                               [&](std::int64_t c, float sum) {
                                                 return multiply_add(grad[c] * gain[c], row[c] - mean, sum);
                                               }) *
                          scale / width;
      float* out = buffer + 2 * C;
      for (std::int64_t c = 0; c < C; ++c) {
        const float normed = (row[c] - mean) * scale;
        dgain[c] = multiply_add(grad[c], normed, dgain[c]);
        dbias[c] += grad[c];
        out[c] = scale * multiply_add(-normed, along, multiply_add(grad[c], gain[c], -level));
      }
      if (!op.dresidual.empty()) {
        const float* residual = cpu::load(op.dresidual, r * C, C, buffer + 3 * C);
        for (std::int64_t c = 0; c < C; ++c) out[c] += residual[c];
      }
      cpu::store(op.dx.value, r * C, C, out);
    }
  });
  cpu::store_sums(op.dweight, op.accumulate, partial, 2 * C, C, 0);
  if (!op.dbias.empty()) cpu::store_sums(op.dbias, op.accumulate, partial, 2 * C, C, C);
  do_quantize({op.dx});
}

}  // namespace precbench
