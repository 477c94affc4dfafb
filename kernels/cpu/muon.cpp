// Muon's (Jordan et al. 2024) ops other than GEMMs: momentum, normalization before its iteration, linear
// combinations within it, and the weight update.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/weight_update.h"

namespace precbench {

void CpuDevice::do_momentum(const ops::Momentum& op) {
  constexpr std::int64_t kChunk = cpu::kUpdateChunk;
  const float clip = cpu::clip_factor(op.norm_squared, op.max_norm);
  cpu::for_update_chunks(threads_, op.m.size(), 3, [&](std::int64_t first, std::int64_t n, float* buffer) {
    float *mean = buffer, *update = mean + kChunk;
    const float* m0 = cpu::load(op.m, first, n, mean);
    const float* g0 = cpu::load(op.gradient, first, n, update + kChunk);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      // The clipped gradient itself is never rounded.
      mean[i] = multiply_add(1.0f - op.momentum, multiply_add(g0[i], clip, -m0[i]), m0[i]);
      update[i] = multiply_add(g0[i], clip, op.momentum * multiply_add(-g0[i], clip, mean[i]));
    }
    cpu::store(op.m, first, n, mean);
    cpu::store(op.update, first, n, update);
  });
}

void CpuDevice::do_to_unit_norm(const ops::ToUnitNorm& op) {
  const float norm = std::max(std::sqrt(*op.norm_squared.as<float>()), op.eps);
  cpu::for_update_chunks(threads_, op.x.size(), 1, [&](std::int64_t first, std::int64_t n, float* buffer) {
    const float* x = cpu::load(op.x, first, n, buffer);
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = x[i] / norm;
    cpu::store(op.x, first, n, buffer);
  });
}

void CpuDevice::do_combine(const ops::Combine& op) {
  cpu::for_update_chunks(threads_, op.dst.size(), 2, [&](std::int64_t first, std::int64_t n, float* buffer) {
    const float* x = cpu::load(op.x, first, n, buffer);
    const float* y = cpu::load(op.y, first, n, buffer + cpu::kUpdateChunk);
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = multiply_add(op.alpha, x[i], op.beta * y[i]);
    cpu::store(op.dst, first, n, buffer);
  });
}

void CpuDevice::do_descend(const ops::Descend& op) {
  const UpdateOptions& o = op.options;
  const StepScalars step = cpu::step_scalars(op.scalars);
  const Tensor& source = op.master.empty() ? op.weights : op.master;
  cpu::for_update_chunks(threads_, source.size(), 2, [&](std::int64_t first, std::int64_t n, float* w) {
    const float* w0 = cpu::load(source, first, n, w);
    const float* update = cpu::load(op.update, first, n, w + cpu::kUpdateChunk);
    for (std::int64_t i = 0; i < n; ++i)
      w[i] = multiply_add(-step.lr, multiply_add(op.factor, update[i], o.weight_decay * w0[i]), w0[i]);
    cpu::store_weights(op.weights, op.master, first, n, w, o, step.seed);
  });
}

}  // namespace precbench
