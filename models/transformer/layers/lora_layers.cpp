// GEMMs of adapters. See lora_layers.h.
#include "models/transformer/layers/lora_layers.h"

#include <algorithm>

namespace precbench {
namespace {

GemmOperand transposed(const Tensor& matrix) { return plain_operand(matrix, true); }

MatmulOptions options_of(GemmRole role, bool accumulate) {
  return {.role = role, .accumulate = accumulate, .op_class = OpClass::gemm};
}

}  // namespace

LoraLayers::LoraLayers(const StepContext& step)
    : step_(step), scale_(step.parameters.options().lora.scale()) {
  for (std::vector<Tensor>& inner : inner_) inner.resize(step.config.layers);
}

const LoraMatrices& LoraLayers::matrices(std::int64_t layer, LinearRole role) const {
  const std::vector<LoraMatrices>& all = step_.parameters.layout().lora(layer);
  return *std::find_if(all.begin(), all.end(), [&](const LoraMatrices& m) { return m.role == role; });
}

void LoraLayers::push_shared() {
  std::int64_t most = 0;
  for (std::int64_t layer = 0; layer < step_.config.layers; ++layer)
    for (const LoraMatrices& m : step_.parameters.layout().lora(layer)) most = std::max(most, m.inner());
  inner_gradient_ = step_.push(most);
  layer_ = -1;
}

void LoraLayers::push_saved(std::int64_t layer) {
  for (const LoraMatrices& m : step_.parameters.layout().lora(layer))
    inner_[static_cast<int>(m.role)][layer] = step_.push(m.inner());
}

Tensor LoraLayers::weights(std::int64_t layer) const {
  return step_.parameters.adapters(step_.parameters.layout().block_unit(layer));
}

Tensor LoraLayers::a_of(const LoraMatrices& m, const Tensor& unit) {
  return unit.elements(m.a_offset, m.inner() * m.in).reshape(m.inner(), m.in);
}

Tensor LoraLayers::b_of(const LoraMatrices& m, std::size_t part, const Tensor& unit) {
  const auto [offset, out] = m.outputs[part];
  return unit.elements(offset, out * m.rank).reshape(out, m.rank);
}

Tensor LoraLayers::whole_b(std::int64_t layer, const LoraMatrices& m) const {
  const Tensor unit = weights(layer);
  if (m.outputs.size() == 1) return b_of(m, 0, unit);
  const Tensor whole = step_.arena.push(Segment::workspace, unit.dtype, m.out(), m.inner());
  step_.device.zero({whole});
  std::int64_t row = 0;
  for (std::size_t part = 0; part < m.outputs.size(); row += m.outputs[part++].out)
    step_.device.copy_columns({whole.slice_rows(row, m.outputs[part].out),
                               static_cast<std::int64_t>(part) * m.rank, b_of(m, part, unit)});
  return whole;
}

void LoraLayers::fprop(std::int64_t layer, LinearRole role, const Tensor& y, const Tensor& x) {
  const Scope scope(step_.arena);
  const LoraMatrices& m = matrices(layer, role);
  const Tensor& inner = inner_[static_cast<int>(role)][layer];
  step_.device.matmul(
      {inner, plain_operand(x), plain_operand(a_of(m, weights(layer))), options_of(GemmRole::fprop, false)});
  step_.scale(inner, scale_);
  step_.device.matmul(
      {y, plain_operand(inner), plain_operand(whole_b(layer, m)), options_of(GemmRole::fprop, true)});
}

Tensor LoraLayers::inner_gradient(std::int64_t layer, LinearRole role, const Tensor& dy) {
  const LoraMatrices& m = matrices(layer, role);
  const Tensor gradient = inner_gradient_.elements(0, dy.rows * m.inner()).reshape(dy.rows, m.inner());
  if (layer_ == layer && role_ == role) return gradient;
  layer_ = layer, role_ = role;
  const Scope scope(step_.arena);
  step_.device.matmul(
      {gradient, plain_operand(dy), transposed(whole_b(layer, m)), options_of(GemmRole::dgrad, false)});
  step_.scale(gradient, scale_);
  return gradient;
}

void LoraLayers::dgrad(std::int64_t layer, LinearRole role, const Tensor& dx, const Tensor& dy) {
  step_.device.matmul({dx, plain_operand(inner_gradient(layer, role, dy)),
                       transposed(a_of(matrices(layer, role), weights(layer))),
                       options_of(GemmRole::dgrad, true)});
}

void LoraLayers::wgrad(std::int64_t layer, LinearRole role, const Tensor& dy, const Tensor& x) {
  const LoraMatrices& m = matrices(layer, role);
  const Tensor unit = step_.parameters.gradients(step_.parameters.layout().block_unit(layer));
  const bool accumulate = step_.parameters.accumulates();
  step_.device.matmul({a_of(m, unit), transposed(inner_gradient(layer, role, dy)), transposed(x),
                       options_of(GemmRole::wgrad, accumulate)});
  const Tensor& inner = inner_[static_cast<int>(role)][layer];
  if (m.outputs.size() == 1)
    return step_.device.matmul(
        {b_of(m, 0, unit), transposed(dy), transposed(inner), options_of(GemmRole::wgrad, accumulate)});
  const Scope scope(step_.arena);
  const Tensor whole = step_.arena.push(Segment::workspace, unit.dtype, m.out(), m.inner());
  step_.device.matmul({whole, transposed(dy), transposed(inner), options_of(GemmRole::wgrad, false)});
  std::int64_t row = 0;
  for (std::size_t part = 0; part < m.outputs.size(); row += m.outputs[part++].out) {
    const Scope temporary(step_.arena);
    const Tensor gradient = b_of(m, part, unit);
    const Tensor own = accumulate
                           ? step_.arena.push(Segment::workspace, unit.dtype, gradient.rows, gradient.cols)
                           : gradient;
    step_.device.copy_columns(
        {own, static_cast<std::int64_t>(part) * m.rank, whole.slice_rows(row, m.outputs[part].out)});
    if (accumulate) step_.device.add({gradient, own});
  }
}

}  // namespace precbench
