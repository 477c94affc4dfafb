// A dense feed-forward network, forward and backward. See dense_ffn.h.
#include "models/transformer/layers/dense_ffn.h"

#include <utility>

#include "kernels/numerics/custom_format.h"

namespace precbench {

void DenseFfn::push_saved(std::int64_t layer, FfnSaved& saved) const {
  if (has_amax_of_x(step_.linear(layer, down_))) saved.swiglu_amax = step_.push(DType::f32, 1, 1);
  const QuantFormat& kept = step_.options.kept.activation_input;
  saved.input = step_.push_kept(kept, up_width());
  saved.direct = gated() && keeps_directly(kept, ffn_);
}

void DenseFfn::push_selected(std::int64_t layer, FfnSaved& saved) const {
  if (step_.keeps_output(layer, gate_up_)) saved.gate = step_.push(ffn_);
}

void DenseFfn::read_input(FfnSaved& saved) const {
  if (saved.input.empty() || saved.direct) return;
  push_inner(saved);
  step_.read_back(saved.gate_up, saved.input);
}

void DenseFfn::push_output(std::int64_t layer, FfnSaved& saved) const {
  const QuantFormat& format = step_.linear(layer, down_).x_columnwise();
  const KeptAs kept = step_.options.kept.activation;
  if (kept == KeptAs::quantized && format.quantized())
    saved.copy = step_.operands.push(format, ffn_, step_.M);
  else if (kept != KeptAs::recompute)
    saved.value = step_.push(ffn_);
}

void DenseFfn::forward_up(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w,
                          const QuantizedTensor& h, ForwardKind kind) const {
  if (kind == ForwardKind::recompute && !saved.gate.empty()) {
    step_.device.copy_columns({saved.gate_up, 0, saved.gate});
    if (gated()) step_.fprop_columns(layer, gate_up_, saved.gate_up, ffn_, ffn_, h, w);
    return;
  }
  step_.fprop(layer, gate_up_, saved.gate_up, h, w);
  if (!saved.gate.empty()) step_.device.copy_columns({saved.gate, 0, saved.gate_up});
  if (saved.input.empty() || saved.direct) return;
  step_.keep(saved.input, saved.gate_up);
  step_.read_back(saved.gate_up, saved.input);
}

void DenseFfn::activate(QuantizedTensor& s, const FfnSaved& saved, const BlockWeights& w) const {
  if (gated())
    return step_.device.swiglu({s, saved.gate_up, activation(), saved.direct ? saved.input : GemmOperand{}});
  step_.device.activate({s, saved.gate_up, w.up_bias, activation()});
}

void DenseFfn::activate_backward(QuantizedTensor& dgate_up, QuantizedTensor& s, const Tensor& ds,
                                 const FfnSaved& saved, const BlockWeights& w) const {
  if (saved.direct) return step_.device.swiglu_backward({dgate_up, s, ds, {}, activation(), saved.input});
  if (gated()) return step_.device.swiglu_backward({dgate_up, s, ds, saved.gate_up, activation()});
  step_.device.activate_backward({dgate_up, s, ds, saved.gate_up, w.up_bias, activation()});
}

void DenseFfn::forward_down(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w,
                            const Tensor& out) const {
  const Scope scope(step_.arena);
  const Linear down = step_.linear(layer, down_);
  QuantizedTensor s =
      make_quantized_tensor(saved.value.empty() ? step_.push(ffn_) : saved.value, down.x_rowwise(), {});
  s.columnwise = saved.copy;
  s.amax_out = saved.swiglu_amax;
  use_slot(s, down.slots().x);
  step_.operands.push_rowwise(s, down.x_rowwise());
  s.keep_value = !down.x_rowwise().quantized() || !saved.value.empty() || step_.reads_values();
  step_.produce_quantized(s, [&](QuantizedTensor& x) { activate(x, saved, w); });
  step_.observe(layer, down_, LinearOperand::x, s);
  step_.sum_over_tensor(out, [&](const Tensor& y) { step_.fprop(layer, down_, y, s, w); });
  if (!w.down_bias.empty()) step_.device.add_bias({out, w.down_bias});
}

Tensor DenseFfn::backward(std::int64_t layer, const FfnSaved& saved, const BlockWeights& w,
                          const BlockTensors& g, const QuantizedTensor& dy, const NormOutput& norm) const {
  const Linear gate_up = step_.linear(layer, gate_up_), down = step_.linear(layer, down_);
  QuantizedTensor dgate_up = step_.operands.push_gradient(step_.push(up_width()), gate_up);
  // Made from SwiGLU's FP32 gradient, so no transposition is needed.
  if (gate_up.recipe().flow) step_.operands.push_columnwise(dgate_up, gate_up.dy_columnwise());
  dgate_up.keep_value = !gate_up.dy_rowwise().quantized() || !gate_up.dy_columnwise().quantized() ||
                        !w.up_bias.empty() || step_.observer;
  {
    const Scope inner(step_.arena);
    const Tensor ds = step_.push(ffn_);
    {
      const Scope innermost(step_.arena);
      Tensor x;
      if (down.recipe().mask_clipped) {
        x = step_.push(ffn_);
        QuantizedTensor value = make_quantized_tensor(x, {}, {});
        FfnSaved read = saved;
        if (std::exchange(read.direct, false)) read_input(read);
        activate(value, read, w);
      }
      step_.dgrad(layer, down_, ds, dy, w, x);
    }
    const bool kept = !saved.value.empty() || !saved.copy.empty();
    QuantizedTensor s;
    s.keep_value = false;
    if (!kept) {
      s = make_quantized_tensor(step_.push(ffn_), {}, down.x_columnwise());
      s.amax_in = saved.swiglu_amax.empty() ? down.slots().x.known : saved.swiglu_amax;
      s.random = down.slots().x.random;
      step_.operands.push_columnwise(s, down.x_columnwise());
      s.keep_value = !down.x_columnwise().quantized() || step_.observer;
    }
    step_.produce_quantized(dgate_up, [&](QuantizedTensor& d) { activate_backward(d, s, ds, saved, w); });
    step_.observe(layer, gate_up_, LinearOperand::dy, dgate_up);
    if (!saved.copy.empty())
      s.columnwise = saved.copy;
    else if (kept)
      s = step_.quantized_for(GemmRole::wgrad, layer, down_, saved.value, saved.swiglu_amax);
    else
      step_.observe(layer, down_, LinearOperand::x, s);
    step_.observe_codes(layer, down_, LinearOperand::dy, dy);
    step_.wgrad(layer, down_, g, dy, s, w);
    // After the weight's gradient, which commits the memory of both.
    const bool accumulate = step_.parameters.accumulates();
    if (!w.up_bias.empty()) step_.device.bias_backward({g.up_bias, accumulate, dgate_up.value});
    if (!w.down_bias.empty()) step_.device.bias_backward({g.down_bias, accumulate, dy.value});
  }
  const Tensor dh = step_.push_stream();
  norm_dgrad(step_, layer, gate_up_, dh, dgate_up, w, norm);
  norm_wgrad(step_, layer, gate_up_, g, dgate_up, w, norm);
  return dh;
}

}  // namespace precbench
