// q, k and v as three GEMMs, each in the recipe or in BF16, for cases that select among them. They share one
// input. Their outputs and gradients are columns of one matrix, as attention expects, and are copied into and
// out of it.
#include <algorithm>

#include "models/transformer/qkv_part.h"
#include "models/transformer/transformer.h"

namespace precbench {

bool Transformer::qkv_apart(std::int64_t layer) const {
  return std::any_of(std::begin(kQkvParts), std::end(kQkvParts),
                     [&](Role part) { return options_.recipe_of(layer, part).quantized(); });
}

void Transformer::fprop_apart(std::int64_t layer, const Tensor& y, const QuantizedTensor& x,
                              const BlockWeights& w) {
  for (const Role role : kQkvParts) {
    const Scope scope(arena_);
    const QkvPart part = part_of(attention_shape_, role);
    const Linear lin = linear(layer, role);
    QuantizedTensor input = make_quantized_tensor(x.value, lin.x_rowwise(), {});
    use_slot(input, lin.slots().x);
    push_row(input, lin.x_rowwise());
    produce(input, [&](QuantizedTensor& in) { device_.quantize({in}); });
    observe(layer, role, LinearOperand::x, input);
    const Tensor out = push(part.count);
    const Weight weight{part.rows_of(w[Role::qkv].value)};
    lin.fprop(out, input, weight);
    observe_weight(layer, role, weight, false);
    device_.copy_columns({y, part.first, out});
  }
}

void Transformer::backward_apart(std::int64_t layer, const Tensor& dx, const Tensor& dqkv,
                                 const BlockWeights& w, const BlockTensors& g, const Tensor& x) {
  parameters_.commit(g[Role::qkv]);
  for (const Role role : kQkvParts) {
    const Scope scope(arena_);
    const QkvPart part = part_of(attention_shape_, role);
    const Linear lin = linear(layer, role);
    const Tensor out = push(part.count);
    device_.copy_columns({out, part.first, dqkv});
    QuantizedTensor dy = push_gradient(out, lin);
    produce(dy, [&](QuantizedTensor& gradient) { device_.quantize({gradient}); });
    observe(layer, role, LinearOperand::dy, dy);
    observe_codes(layer, role, LinearOperand::dy, dy);
    const Weight weight{part.rows_of(w[Role::qkv].value)};
    lin.dgrad(dx, dy, weight, x, role != Role::q);
    observe_weight(layer, role, weight, true);
    QuantizedTensor input = make_quantized_tensor(x, {}, lin.x_columnwise());
    use_slot(input, lin.slots().x);
    if (lin.recipe().flow)
      push_row(input, lin.x_rowwise());  // again: saving rowwise data of all three would cost memory
    else
      push_col(input, lin.x_columnwise());
    produce(input, [&](QuantizedTensor& in) { device_.quantize({in}); });
    if (lin.recipe().flow)
      observe_codes(layer, role, LinearOperand::x, input);
    else
      observe(layer, role, LinearOperand::x, input);
    lin.wgrad(part.rows_of(g[Role::qkv]), dy, input, weight, parameters_.accumulates());
  }
}

}  // namespace precbench
