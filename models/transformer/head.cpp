// The head: final norm, lm_head and loss, forward and backward. See transformer.h.
#include <algorithm>

#include "models/transformer/transformer.h"

namespace precbench {

Transformer::Head Transformer::begin_head(const Tensor& mid) {
  const Layout& layout = parameters_.layout();
  const Tensor unit = parameters_.gather(layout.head_unit());
  const Head head{linear(config_.layers, Role::head),
                  {layout.lm_head(unit)},
                  layout.final_norm(unit),
                  push(config_.width),
                  push(DType::f32, M_, 1),
                  push(config_.width)};
  QuantizedTensor h = make_quantized_tensor(head.normed, {}, {});
  device_.add_rmsnorm({h, head.x, head.rstd, mid, branch_, head.gain, static_cast<float>(config_.norm_eps)});
  return head;
}

QuantizedTensor Transformer::head_forward(const Head& head, std::int64_t first, const Tensor& targets,
                                          float loss_scale, QuantizedTensor& x) {
  const Linear& lin = head.linear;
  const std::int64_t rows = std::min(head_run(head), M_ - first);
  x = make_quantized_tensor(head.normed.slice_rows(first, rows), lin.x_rowwise(), lin.x_columnwise());
  use_slot(x, lin.slots().x);
  push_row(x, lin.x_rowwise());
  if (!lin.recipe().flow) push_col(x, lin.x_columnwise());
  produce(x, [&](QuantizedTensor& x_run) { device_.quantize({x_run}); });
  QuantizedTensor logits = make_quantized_tensor(push(options_.activations, rows, config_.vocab),
                                                 lin.dy_rowwise(), lin.dy_columnwise());
  lin.fprop(logits.value, x, head.weight);
  device_.cross_entropy(
      {losses_.slice_rows(first, rows), logits.value, targets.slice_rows(first, rows), loss_scale});
  return logits;
}

void Transformer::head(const Tensor& loss_sum, const Tensor& targets, float loss_scale,
                       bool first_micro_step) {
  const Scope scope(arena_);
  const Layout& layout = parameters_.layout();
  const Head head = begin_head(saved_.back().mid);
  const Linear& lin = head.linear;
  const Tensor dh = push(config_.width);

  const Tensor gradient = parameters_.gradients(layout.head_unit());
  parameters_.commit(gradient);
  const Tensor dweight = layout.lm_head(gradient);
  for (std::int64_t first = 0; first < M_; first += head_run(head)) {
    const Scope inner(arena_);
    QuantizedTensor x;
    QuantizedTensor logits = head_forward(head, first, targets, loss_scale, x);
    use_slot(logits, lin.slots().dy);
    push_row(logits, lin.dy_rowwise());
    if (!lin.recipe().flow) push_col(logits, lin.dy_columnwise());
    produce(logits, [&](QuantizedTensor& dlogits) { device_.quantize({dlogits}); });
    lin.dgrad(dh.slice_rows(first, logits.value.rows), logits, head.weight, x.value);
    lin.wgrad(dweight, logits, x, head.weight, parameters_.accumulates() || first > 0);
  }
  device_.sum({loss_sum, losses_, !first_micro_step});
  QuantizedTensor dx = gradient_in(slot_, config_.layers - 1);
  produce(dx, [&](QuantizedTensor& d) {
    device_.rmsnorm_backward(
        {d, layout.final_norm(gradient), parameters_.accumulates(), {}, dh, head.x, head.rstd, head.gain});
  });
  observe(config_.layers - 1, Role::down, LinearOperand::dy, dx);
  if (!config_.tied) parameters_.reduce(layout.head_unit());
}

}  // namespace precbench
