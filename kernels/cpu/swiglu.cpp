// SwiGLU (Shazeer 2020): s = silu(gate) * up, silu(g) = g / (1 + e^-g).
// Backward: ds/dup = silu(g), ds/dgate = sigma(g) (1 + g (1 - sigma(g))) * up; it also makes s again for
// wgrad, since recomputing it costs one write where keeping it costs memory for the whole of forward.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {
namespace {

inline float sigmoid(float x) { return 1.0f / (1.0f + cpu::exp(-x)); }

}  // namespace

void CpuDevice::do_swiglu(const ops::Swiglu& op) {
  const std::int64_t F = op.s.value.cols;
  cpu::for_rows(threads_, op.s.value.rows, 3 * F, [&](std::int64_t r, float* buffer) {
    const float* gate = cpu::load(op.gate_up, r * 2 * F, 2 * F, buffer);
    const float* up = gate + F;
    float* out = buffer + 2 * F;
#pragma omp simd
    for (std::int64_t i = 0; i < F; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
    cpu::store(op.s.value, r * F, F, out);
  });
  do_quantize({op.s});
}

void CpuDevice::do_swiglu_backward(const ops::SwigluBackward& op) {
  const std::int64_t F = op.ds.cols;
  cpu::for_rows(threads_, op.ds.rows, 6 * F, [&](std::int64_t r, float* buffer) {
    const float* gate = cpu::load(op.gate_up, r * 2 * F, 2 * F, buffer);
    const float* up = gate + F;
    const float* grad = cpu::load(op.ds, r * F, F, buffer + 2 * F);
    float* dgate = buffer + 3 * F;
    float* dup = buffer + 4 * F;
    float* again = buffer + 5 * F;
#pragma omp simd
    for (std::int64_t i = 0; i < F; ++i) {
      const float sigma = sigmoid(gate[i]);
      again[i] = gate[i] * sigma * up[i];
      dup[i] = grad[i] * gate[i] * sigma;
      dgate[i] = grad[i] * up[i] * sigma * (1.0f + gate[i] * (1.0f - sigma));
    }
    cpu::store(op.dgate_up.value, r * 2 * F, 2 * F, dgate);
    cpu::store(op.s.value, r * F, F, again);
  });
  do_quantize({op.dgate_up});
  do_quantize({op.s});
}

}  // namespace precbench
