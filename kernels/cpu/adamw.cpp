// AdamW (Loshchilov & Hutter 2019) with clipping by the global norm, on a run of elements. Weights are BF16;
// with an FP32 master the update happens there and the weights are its rounding, without one they are their
// own master, rounded to nearest or stochastically. Moments and gradients are FP32 or BF16.
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/weight_update.h"

namespace precbench {

void CpuDevice::do_adamw(const ops::Adamw& op) {
  if (op.scaled()) return scaled_adamw(op);
  constexpr std::int64_t kChunk = cpu::kUpdateChunk;
  const UpdateOptions& o = op.options;
  const StepScalars step = cpu::step_scalars(op.scalars);
  const float clip = cpu::clip_factor(op.norm_squared, o.max_norm);
  const Tensor& source = op.master.empty() ? op.weights : op.master;
  std::vector<float> squares(cpu::update_chunks(source.size()));
  cpu::for_update_chunks(threads_, source.size(), 4, [&](std::int64_t first, std::int64_t n, float* buffer) {
    float *w = buffer, *mean = w + kChunk, *square = mean + kChunk;
    // Sources that are FP32 already are read where they lie; the updates go through the buffers.
    const float* w0 = cpu::load(source, first, n, w);
    const float* m0 = cpu::load(op.m, first, n, mean);
    const float* v0 = cpu::load(op.v, first, n, square);
    const float* g0 = cpu::load(op.gradient, first, n, square + kChunk);
    if (o.max_norm <= 0)
      squares[first / kChunk] = cpu::lane_sum(n, [&](std::int64_t i) { return g0[i] * g0[i]; });
      // What is read where it lies is written only below, so no iteration sees another's results.
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const float g = g0[i] * clip;
      mean[i] = o.beta1 * m0[i] + (1.0f - o.beta1) * g;
      square[i] = o.beta2 * v0[i] + (1.0f - o.beta2) * g * g;
      const float update =
          mean[i] / step.bias_correction1 / (std::sqrt(square[i] / step.bias_correction2) + o.eps);
      w[i] = w0[i] - step.lr * (update + o.weight_decay * w0[i]);
    }
    cpu::store(op.m, first, n, mean);
    cpu::store(op.v, first, n, square);
    cpu::store_weights(op.weights, op.master, first, n, w, o, step.seed);
  });
  if (o.max_norm <= 0)
    *op.norm_squared.as<float>() += static_cast<float>(std::accumulate(squares.begin(), squares.end(), 0.0));
}

}  // namespace precbench
