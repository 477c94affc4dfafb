// Lion (Chen et al. 2023): steps by the sign of an averaged gradient, with one moment and clipping by the
// global norm.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/weight_update.h"

namespace precbench {

void CpuDevice::do_lion(const ops::Lion& op) {
  constexpr std::int64_t kChunk = cpu::kUpdateChunk;
  const UpdateOptions& o = op.options;
  const StepScalars step = cpu::step_scalars(op.scalars);
  const float clip = cpu::clip_factor(op.norm_squared, o.max_norm);
  const Tensor& source = op.master.empty() ? op.weights : op.master;
  cpu::for_update_chunks(threads_, source.size(), 3, [&](std::int64_t first, std::int64_t n, float* buffer) {
    float *w = buffer, *mean = w + kChunk;
    const float* w0 = cpu::load(source, first, n, w);
    const float* m0 = cpu::load(op.m, first, n, mean);
    const float* g0 = cpu::load(op.gradient, first, n, mean + kChunk);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const float g = g0[i] * clip;
      const float direction = multiply_add(o.beta1, m0[i], (1.0f - o.beta1) * g);
      const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
      mean[i] = multiply_add(o.beta2, m0[i], (1.0f - o.beta2) * g);
      w[i] = multiply_add(-step.lr, multiply_add(o.weight_decay, w0[i], sign), w0[i]);
    }
    cpu::store(op.m, first, n, mean);
    cpu::store_weights(op.weights, op.master, first, n, w, o, step.seed);
  });
}

}  // namespace precbench
