// q, k and v as three GEMMs, each in the recipe or in BF16, for cases that select among them. They share one
// input. Their outputs and gradients are columns of one matrix, as attention expects, and are copied into and
// out of it.
#include <algorithm>

#include "models/transformer/layers/attention_layer.h"
#include "models/transformer/layers/lora_layers.h"

namespace precbench {
namespace {

/// Row range of one part in qkv's weight or gradient, which is also its column range in the output.
struct QkvPart {
  std::int64_t first, count;

  Tensor rows_of(const Tensor& matrix) const { return matrix.slice_rows(first, count); }
};

QkvPart qkv_part(const AttentionShape& shape, LinearRole part) {
  const std::int64_t q = shape.q_width(), kv = shape.kv_width() / 2;
  const int place = place_in_qkv(part);
  return place == 0 ? QkvPart{0, q} : QkvPart{q + (place - 1) * kv, kv};
}

}  // namespace

bool AttentionLayer::splits_qkv(std::int64_t layer) const {
  return std::any_of(std::begin(kQkvParts), std::end(kQkvParts),
                     [&](LinearRole part) { return step_.recipe(layer, part).quantized(); });
}

void AttentionLayer::split_qkv_forward(std::int64_t layer, const Tensor& y, const QuantizedTensor& x,
                                       const BlockWeights& w) const {
  for (const LinearRole role : kQkvParts) {
    const Scope scope(step_.arena);
    const QkvPart part = qkv_part(step_.attention_shape, role);
    const Linear linear = step_.linear(layer, role);
    QuantizedTensor input = make_quantized_tensor(x.value, linear.x_rowwise(), {});
    use_slot(input, linear.slots().x);
    step_.operands.push_rowwise(input, linear.x_rowwise());
    step_.produce_quantized(input, [&](QuantizedTensor& in) { step_.device.quantize({in}); });
    step_.observe(layer, role, LinearOperand::x, input);
    const Tensor out = step_.push(part.count);
    const Weight weight{part.rows_of(w[LinearRole::qkv].value)};
    linear.fprop(out, input, weight);
    step_.observe_weight(layer, role, weight, GemmRole::fprop);
    step_.device.copy_columns({y, part.first, out});
  }
  if (step_.lora) step_.lora->fprop(layer, LinearRole::qkv, y, x.value);
}

void AttentionLayer::split_qkv_backward(std::int64_t layer, const Tensor& dx, const Tensor& dqkv,
                                        const BlockWeights& w, const BlockTensors& g, const Tensor& x) const {
  if (!step_.lora) step_.parameters.commit(g[LinearRole::qkv]);
  for (const LinearRole role : kQkvParts) {
    const Scope scope(step_.arena);
    const QkvPart part = qkv_part(step_.attention_shape, role);
    const Linear linear = step_.linear(layer, role);
    const Tensor out = step_.push(part.count);
    step_.device.copy_columns({out, part.first, dqkv});
    QuantizedTensor dy = step_.operands.push_gradient(out, linear);
    step_.produce_quantized(dy, [&](QuantizedTensor& gradient) { step_.device.quantize({gradient}); });
    step_.observe(layer, role, LinearOperand::dy, dy);
    step_.observe_codes(layer, role, LinearOperand::dy, dy);
    const Weight weight{part.rows_of(w[LinearRole::qkv].value)};
    linear.dgrad(dx, dy, weight, x, role != LinearRole::q);
    step_.observe_weight(layer, role, weight, GemmRole::dgrad);
    if (step_.lora) continue;
    QuantizedTensor input = make_quantized_tensor(x, {}, linear.x_columnwise());
    use_slot(input, linear.slots().x);
    // With flow it is quantized again: saving rowwise data of all three would cost memory.
    if (linear.recipe().flow)
      step_.operands.push_rowwise(input, linear.x_rowwise());
    else
      step_.operands.push_columnwise(input, linear.x_columnwise());
    step_.produce_quantized(input, [&](QuantizedTensor& in) { step_.device.quantize({in}); });
    if (linear.recipe().flow)
      step_.observe_codes(layer, role, LinearOperand::x, input);
    else
      step_.observe(layer, role, LinearOperand::x, input);
    linear.wgrad(part.rows_of(g[LinearRole::qkv]), dy, input, weight, step_.parameters.accumulates());
  }
  if (!step_.lora) return;
  step_.lora->dgrad(layer, LinearRole::qkv, dx, dqkv);
  step_.lora->wgrad(layer, LinearRole::qkv, dqkv, x);
}

}  // namespace precbench
