// Final norm, lm_head and loss. See lm_head.h.
#include "models/transformer/layers/lm_head.h"

namespace precbench {

LmHead::Pass LmHead::begin(const Input& input) const {
  const Layout& layout = step_.parameters.layout();
  const Tensor unit = step_.parameters.gather(layout.head_unit());
  const Pass pass{step_.linear(step_.config.layers, LinearRole::head),
                  {layout.lm_head(unit)},
                  layout.final_norm(unit),
                  step_.push(step_.config.width),
                  step_.push(DType::f32, step_.M, 1),
                  step_.push(step_.config.width)};
  QuantizedTensor h = make_quantized_tensor(pass.normed, {}, {});
  step_.device.add_rmsnorm(
      {h, pass.x, pass.rstd, input.mid, input.branch, pass.gain, static_cast<float>(step_.config.norm_eps)});
  return pass;
}

QuantizedTensor LmHead::forward_chunk(const Pass& pass, std::int64_t first, const Tensor& losses,
                                      const Tensor& targets, float loss_scale, QuantizedTensor& x) const {
  const Linear& linear = pass.linear;
  const std::int64_t rows = std::min(chunk_tokens(pass), step_.M - first);
  x = make_quantized_tensor(pass.normed.slice_rows(first, rows), linear.x_rowwise(), linear.x_columnwise());
  use_slot(x, linear.slots().x);
  step_.operands.push_rowwise(x, linear.x_rowwise());
  if (!linear.recipe().flow) step_.operands.push_columnwise(x, linear.x_columnwise());
  step_.produce_quantized(x, [&](QuantizedTensor& chunk) { step_.device.quantize({chunk}); });
  QuantizedTensor logits =
      make_quantized_tensor(step_.push(step_.options.activations, rows, step_.config.vocab),
                            linear.dy_rowwise(), linear.dy_columnwise());
  linear.fprop(logits.value, x, pass.weight);
  step_.device.cross_entropy(
      {losses.slice_rows(first, rows), logits.value, targets.slice_rows(first, rows), loss_scale});
  return logits;
}

void LmHead::forward(const Input& input, const Tensor& losses) const {
  const Pass pass = begin(input);
  for (std::int64_t first = 0; first < step_.M; first += chunk_tokens(pass)) {
    const Scope chunk(step_.arena);
    QuantizedTensor x;
    forward_chunk(pass, first, losses, input.targets, 1.0f, x);
  }
}

void LmHead::forward_backward(const Input& input, const Tensor& losses, const Tensor& loss_sum,
                              QuantizedTensor dx) const {
  const Scope scope(step_.arena);
  Parameters& parameters = step_.parameters;
  const Layout& layout = parameters.layout();
  const Pass pass = begin(input);
  const Linear& linear = pass.linear;
  const Tensor dh = step_.push(step_.config.width);

  const Tensor gradient = parameters.gradients(layout.head_unit());
  parameters.commit(gradient);
  const Tensor dweight = layout.lm_head(gradient);
  for (std::int64_t first = 0; first < step_.M; first += chunk_tokens(pass)) {
    const Scope chunk(step_.arena);
    QuantizedTensor x;
    QuantizedTensor dlogits = forward_chunk(pass, first, losses, input.targets, step_.loss_scale, x);
    use_slot(dlogits, linear.slots().dy);
    step_.operands.push_rowwise(dlogits, linear.dy_rowwise());
    if (!linear.recipe().flow) step_.operands.push_columnwise(dlogits, linear.dy_columnwise());
    step_.produce_quantized(dlogits, [&](QuantizedTensor& dy) { step_.device.quantize({dy}); });
    linear.dgrad(dh.slice_rows(first, dlogits.value.rows), dlogits, pass.weight, x.value);
    linear.wgrad(dweight, dlogits, x, pass.weight, parameters.accumulates() || first > 0);
  }
  step_.device.sum({loss_sum, losses, step_.micro_step > 0});
  step_.produce_quantized(dx, [&](QuantizedTensor& d) {
    step_.device.rmsnorm_backward(
        {d, layout.final_norm(gradient), parameters.accumulates(), {}, dh, pass.x, pass.rstd, pass.gain});
  });
  step_.observe(step_.config.layers - 1, LinearRole::down, LinearOperand::dy, dx);
  if (!step_.config.tied) parameters.reduce(layout.head_unit());
}

}  // namespace precbench
