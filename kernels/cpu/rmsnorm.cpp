// RMSNorm with the residual addition before it (Zhang & Sennrich 2019): h = x / sqrt(mean(x^2) + eps) *
// weight. Each iteration handles one row; the weight gradient is summed over fixed runs of rows, and the runs
// in order.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/norm_rows.h"

namespace precbench {

void CpuDevice::do_add_rmsnorm(const ops::AddRmsnorm& op) {
  const std::int64_t C = op.x.cols;
  if (!op.kept.empty()) {
    const Tensor& sum = op.branch.empty() ? op.x : op.sum;
    cpu::for_rows(threads_, op.x.rows, 2 * C,
                  [&](std::int64_t r, float* buffer) { cpu::norm_input(op, r, buffer); });
    do_quantize({{.value = sum, .rowwise = op.kept}});
    return do_add_rmsnorm({op.h, {}, op.rstd, dequantized(op.kept), {}, op.weight, op.eps, op.gain_offset});
  }
  cpu::for_rows(threads_, op.x.rows, 2 * C, [&](std::int64_t r, float* buffer) {
    const float* row = cpu::norm_input(op, r, buffer);
    const float mean = cpu::lane_dot(C, row, row) / static_cast<float>(C);
    op.rstd.as<float>()[r] = 1.0f / std::sqrt(mean + op.eps);
  });
  do_recompute_rmsnorm({op.h, op.branch.empty() ? op.x : op.sum, op.rstd, op.weight, op.gain_offset});
}

void CpuDevice::do_recompute_rmsnorm(const ops::RecomputeRmsnorm& op) {
  const std::int64_t C = op.sum.cols;
  const std::vector<float> gain = cpu::loaded_row(op.weight, C, op.gain_offset);
  cpu::for_rows(threads_, op.sum.rows, 2 * C, [&](std::int64_t r, float* buffer) {
    const float* row = cpu::load(op.sum, r * C, C, buffer);
    const float scale = op.rstd.as<float>()[r];
    float* out = buffer + C;
    for (std::int64_t c = 0; c < C; ++c) out[c] = row[c] * scale * gain[c];
    cpu::store(op.h.value, r * C, C, out);
  });
  do_quantize({op.h});
}

void CpuDevice::do_rmsnorm_backward(const ops::RmsnormBackward& op) {
  const Tensor x = op.kept.empty() ? op.x : dequantized(op.kept);
  const std::int64_t C = x.cols, M = x.rows;
  constexpr std::int64_t kRun = 64;
  const std::int64_t runs = (M + kRun - 1) / kRun;
  const std::vector<float> gain = cpu::loaded_row(op.weight, C, op.gain_offset);
  std::vector<float> partial(runs * C);
  cpu::for_rows(threads_, runs, 4 * C, [&](std::int64_t run, float* buffer) {
    float* dgain = partial.data() + run * C;
    for (std::int64_t r = run * kRun; r < std::min(M, (run + 1) * kRun); ++r) {
      const float* row = cpu::load(x, r * C, C, buffer);
      const float* grad = cpu::load(op.dh, r * C, C, buffer + C);
      const float scale = op.rstd.as<float>()[r];
      const float mean =
          cpu::lane_accumulate(
              C, [&](std::int64_t c, float sum) { return multiply_add(grad[c] * gain[c], row[c], sum); }) *
          scale / static_cast<float>(C);
      float* out = buffer + 2 * C;
      for (std::int64_t c = 0; c < C; ++c) {
        const float normed = row[c] * scale;
        dgain[c] = multiply_add(grad[c], normed, dgain[c]);
        out[c] = scale * multiply_add(grad[c], gain[c], -(normed * mean));
      }
      if (!op.dresidual.empty()) {
        const float* residual = cpu::load(op.dresidual, r * C, C, buffer + 3 * C);
        for (std::int64_t c = 0; c < C; ++c) out[c] += residual[c];
      }
      cpu::store(op.dx.value, r * C, C, out);
    }
  });
  cpu::store_sums(op.dweight, op.accumulate, partial, C, C, 0);
  do_quantize({op.dx});
}

}  // namespace precbench
