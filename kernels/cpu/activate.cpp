// Activation of a non-gated feed-forward network: s = act(z + bias). Backward also recomputes s for wgrad.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/activation_functions.h"

namespace precbench {
namespace {

struct RowMath {
  static float sigmoid(float x) { return cpu::sigmoid(x); }
};

/// Returns elements of z + bias; `buffer` holds two rows.
const float* biased(const Tensor& z, const Tensor& bias, std::int64_t row, float* buffer) {
  const std::int64_t F = z.cols;
  const float* in = cpu::load(z, row * F, F, buffer);
  if (bias.empty()) return in;
  const float* added = cpu::load(bias, 0, F, buffer + F);
  for (std::int64_t i = 0; i < F; ++i) buffer[i] = in[i] + added[i];
  return buffer;
}

}  // namespace

void CpuDevice::do_activate(const ops::Activate& op) {
  const std::int64_t F = op.z.cols;
  with_any_activation<RowMath>(op.activation, [&](auto act) {
    cpu::for_rows(threads_, op.z.rows, 3 * F, [&](std::int64_t r, float* buffer) {
      const float* z = biased(op.z, op.bias, r, buffer);
      float* out = buffer + 2 * F;
#pragma omp simd
      for (std::int64_t i = 0; i < F; ++i) out[i] = z[i] * act.sigma(z[i]);
      cpu::store(op.s.value, r * F, F, out);
    });
  });
  do_quantize({op.s});
}

void CpuDevice::do_activate_backward(const ops::ActivateBackward& op) {
  const std::int64_t F = op.z.cols;
  with_any_activation<RowMath>(op.activation, [&](auto act) {
    cpu::for_rows(threads_, op.z.rows, 5 * F, [&](std::int64_t r, float* buffer) {
      const float* z = biased(op.z, op.bias, r, buffer);
      const float* grad = cpu::load(op.ds, r * F, F, buffer + 2 * F);
      float* dz = buffer + 3 * F;
      float* again = buffer + 4 * F;
#pragma omp simd
      for (std::int64_t i = 0; i < F; ++i) {
        const float sigma = act.sigma(z[i]);
        again[i] = z[i] * sigma;
        dz[i] = act.slope(grad[i], z[i], sigma);
      }
      cpu::store(op.dz.value, r * F, F, dz);
      if (!op.s.value.empty()) cpu::store(op.s.value, r * F, F, again);
    });
  });
  do_quantize({op.dz});
  do_quantize({op.s});
}

}  // namespace precbench
