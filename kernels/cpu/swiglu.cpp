// SwiGLU (Shazeer 2020): s = act(gate) * up, where act is SiLU or GELU. Backward also recomputes s for wgrad: that
// costs one write, while keeping s would cost memory throughout forward. Over expert rows, s is also multiplied by
// the weight of the row's slot, so that the experts' outputs only need to be added up.
#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/activation_functions.h"

namespace precbench {

using cpu::sigmoid;

namespace {

struct CpuMath {
  static float sigmoid(float x) { return cpu::sigmoid(x); }
};

}  // namespace

void CpuDevice::do_swiglu(const ops::Swiglu& op) {
  if (!op.kept.empty()) {
    do_quantize({{.value = op.gate_up, .rowwise = op.kept}});
    return do_swiglu({op.s, dequantized(op.kept), op.activation});
  }
  const std::int64_t F = op.s.value.cols;
  with_activation<CpuMath>(op.activation, [&](auto act) {
    cpu::for_rows(threads_, op.s.value.rows, 3 * F, [&](std::int64_t r, float* buffer) {
      const float* gate = cpu::load(op.gate_up, r * 2 * F, 2 * F, buffer);
      const float* up = gate + F;
      float* out = buffer + 2 * F;
#pragma omp simd
      for (std::int64_t i = 0; i < F; ++i) out[i] = gate[i] * act.sigma(gate[i]) * up[i];
      cpu::store(op.s.value, r * F, F, out);
    });
  });
  do_quantize({op.s});
}

void CpuDevice::do_swiglu_backward(const ops::SwigluBackward& op) {
  const std::int64_t F = op.ds.cols;
  const Tensor gate_up = op.kept.empty() ? op.gate_up : dequantized(op.kept);
  with_activation<CpuMath>(op.activation, [&](auto act) {
    cpu::for_rows(threads_, op.ds.rows, 6 * F, [&](std::int64_t r, float* buffer) {
      const float* gate = cpu::load(gate_up, r * 2 * F, 2 * F, buffer);
      const float* up = gate + F;
      const float* grad = cpu::load(op.ds, r * F, F, buffer + 2 * F);
      float* dgate = buffer + 3 * F;
      float* dup = buffer + 4 * F;
      float* again = buffer + 5 * F;
#pragma omp simd
      for (std::int64_t i = 0; i < F; ++i) {
        const float sigma = act.sigma(gate[i]);
        again[i] = gate[i] * sigma * up[i];
        dup[i] = grad[i] * gate[i] * sigma;
        dgate[i] = act.slope(grad[i] * up[i], gate[i], sigma);
      }
      cpu::store(op.dgate_up.value, r * 2 * F, 2 * F, dgate);
      if (!op.s.value.empty()) cpu::store(op.s.value, r * F, F, again);
    });
  });
  do_quantize({op.dgate_up});
  do_quantize({op.s});
}

void CpuDevice::do_grouped_swiglu(const ops::GroupedSwiglu& op) {
  const std::int64_t F = op.s.value.cols;
  cpu::for_rows(threads_, op.s.value.rows, 3 * F, [&](std::int64_t r, float* buffer) {
    const std::int32_t slot = op.groups.source.as<std::int32_t>()[r];
    float* out = buffer + 2 * F;
    if (slot < 0) {
      std::fill_n(out, F, 0.0f);
    } else {
      const float* gate = cpu::load(op.gate_up, r * 2 * F, 2 * F, buffer);
      const float* up = gate + F;
      const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[slot];
      if (op.limit > 0) {
        const ClampedGate<CpuMath> clamped{op.limit};
        for (std::int64_t i = 0; i < F; ++i) out[i] = clamped(gate[i], up[i]).s * weight;
      } else {
#pragma omp simd
        for (std::int64_t i = 0; i < F; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i] * weight;
      }
    }
    cpu::store(op.s.value, r * F, F, out);
  });
  quantize_groups(op.s, op.groups);
}

void CpuDevice::do_grouped_swiglu_backward(const ops::GroupedSwigluBackward& op) {
  const std::int64_t F = op.ds.cols;
  if (!op.dw.empty()) std::fill_n(op.dw.as<float>(), op.dw.size(), 0.0f);  // for dropped slots
  cpu::for_rows(threads_, op.ds.rows, 6 * F, [&](std::int64_t r, float* buffer) {
    const std::int32_t slot = op.groups.source.as<std::int32_t>()[r];
    float* dgate = buffer + 3 * F;
    float* dup = buffer + 4 * F;
    float* again = buffer + 5 * F;
    if (slot < 0) {
      std::fill_n(dgate, 3 * F, 0.0f);
    } else {
      const float* gate = cpu::load(op.gate_up, r * 2 * F, 2 * F, buffer);
      const float* up = gate + F;
      const float* grad = cpu::load(op.ds, r * F, F, buffer + 2 * F);
      const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[slot];
      if (op.limit > 0) {
        const ClampedGate<CpuMath> clamped{op.limit};
        if (!op.dw.empty())
          op.dw.as<float>()[slot] = cpu::lane_accumulate(F, [&](std::int64_t i, float sum) {
            return multiply_add(grad[i], clamped(gate[i], up[i]).s, sum);
          });
        for (std::int64_t i = 0; i < F; ++i) {
          const auto [value, by_gate, by_up] = clamped(gate[i], up[i]);
          const float weighted = grad[i] * weight;
          again[i] = value * weight;
          dgate[i] = weighted * by_gate;
          dup[i] = weighted * by_up;
        }
      } else {
        if (!op.dw.empty())
          op.dw.as<float>()[slot] = cpu::lane_accumulate(F, [&](std::int64_t i, float sum) {
            return multiply_add(grad[i] * gate[i] * sigmoid(gate[i]), up[i], sum);
          });
#pragma omp simd
        for (std::int64_t i = 0; i < F; ++i) {
          const float sigma = sigmoid(gate[i]), weighted = grad[i] * weight;
          again[i] = gate[i] * sigma * up[i] * weight;
          dup[i] = weighted * gate[i] * sigma;
          dgate[i] = weighted * up[i] * sigma * multiply_add(gate[i], 1.0f - sigma, 1.0f);
        }
      }
    }
    cpu::store(op.dgate_up.value, r * 2 * F, 2 * F, dgate);
    cpu::store(op.s.value, r * F, F, again);
  });
  quantize_groups(op.dgate_up, op.groups);
  quantize_groups(op.s, op.groups);
}

}  // namespace precbench
