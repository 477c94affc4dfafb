// The dense feed-forward half of a block: SwiGLU and its linear layers, forward and backward, and the
// backward of the norm before them. See transformer.h.
#include "models/transformer/transformer.h"

namespace precbench {

Transformer::SwigluLayers Transformer::dense_layers(const Saved& saved) const {
  return {Role::gate_up, Role::down, config_.ffn, saved.gate_up, saved.swiglu_amax};
}

void Transformer::swiglu_forward(std::int64_t layer, const SwigluLayers& layers, const BlockWeights& w,
                                 const Tensor& out) {
  const Scope scope(arena_);
  const Linear lin = linear(layer, layers.down);
  QuantizedTensor s = make_quantized_tensor(push(layers.ffn), lin.x_rowwise(), {});
  s.amax_out = layers.saved_amax;
  use_slot(s, lin.slots().x);
  push_row(s, lin.x_rowwise());
  s.keep_value = !lin.x_rowwise().quantized() || quantization_observer_;
  produce(s, [&](QuantizedTensor& made) { device_.swiglu({made, layers.saved_gate_up}); });
  observe(layer, layers.down, LinearOperand::x, s);
  fprop(layer, layers.down, out, s, w);
}

Tensor Transformer::swiglu_backward(std::int64_t layer, const SwigluLayers& layers, const BlockWeights& w,
                                    const BlockTensors& g, const QuantizedTensor& dx,
                                    const NormOutput& norm) {
  const Linear gate_up = linear(layer, layers.gate_up), down = linear(layer, layers.down);
  QuantizedTensor dgate_up = push_gradient(push(2 * layers.ffn), gate_up);
  // Made from SwiGLU's FP32 gradient, so no transposition is needed.
  if (gate_up.recipe().flow) push_col(dgate_up, gate_up.dy_columnwise());
  dgate_up.keep_value =
      !gate_up.dy_rowwise().quantized() || !gate_up.dy_columnwise().quantized() || quantization_observer_;
  {
    const Scope inner(arena_);
    const Tensor ds = push(layers.ffn);
    {
      const Scope innermost(arena_);
      Tensor x;
      if (down.recipe().mask_clipped) {
        x = push(layers.ffn);
        device_.swiglu({make_quantized_tensor(x, {}, {}), layers.saved_gate_up});
      }
      dgrad(layer, layers.down, ds, dx, w, x);
    }
    QuantizedTensor s = make_quantized_tensor(push(layers.ffn), {}, down.x_columnwise());
    s.amax_in = layers.saved_amax.empty() ? down.slots().x.known : layers.saved_amax;
    s.random = down.slots().x.random;
    push_col(s, down.x_columnwise());
    s.keep_value = !down.x_columnwise().quantized() || quantization_observer_;
    produce(dgate_up, [&](QuantizedTensor& d) { device_.swiglu_backward({d, s, ds, layers.saved_gate_up}); });
    observe(layer, layers.gate_up, LinearOperand::dy, dgate_up);
    observe(layer, layers.down, LinearOperand::x, s);
    observe_codes(layer, layers.down, LinearOperand::dy, dx);
    wgrad(layer, layers.down, g, dx, s, w);
  }
  const Tensor dh = push(config_.width);
  norm_dgrad(layer, layers.gate_up, dh, dgate_up, w, norm);
  norm_wgrad(layer, layers.gate_up, g, dgate_up, w, norm);
  return dh;
}

void Transformer::ffn_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                               const BlockTensors& g, const QuantizedTensor& dx, QuantizedTensor& dmid) {
  const Scope scope(arena_);
  const NormOutput norm{saved.h2, saved.h2_form, saved.mid, saved.rstd2, w.norm2};
  const Tensor dh = config_.has_experts(layer) ? mixture_backward(layer, saved, w, g, dx, norm)
                                               : swiglu_backward(layer, dense_layers(saved), w, g, dx, norm);
  produce(dmid, [&](QuantizedTensor& d) {
    device_.rmsnorm_backward({.dx = d,
                              .dweight = g.norm2,
                              .accumulate = parameters_.accumulates(),
                              .dresidual = dx.value,
                              .dh = dh,
                              .x = saved.mid,
                              .rstd = saved.rstd2,
                              .weight = w.norm2});
  });
  observe(layer, Role::o, LinearOperand::dy, dmid);
  observe_codes(layer, Role::o, LinearOperand::dy, dmid);
}

}  // namespace precbench
