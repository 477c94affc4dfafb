// Buffers of the residual stream's gradient. See residual_gradient.h.
#include "models/transformer/layers/residual_gradient.h"

#include <fmt/format.h>

#include <stdexcept>

#include "models/transformer/layers/branch_output.h"

namespace precbench {

ResidualGradient::ResidualGradient(const StepContext& step) : step_(step) {
  const Recipe* first = nullptr;
  for (std::int64_t layer = 0; layer < step.config.layers; ++layer) {
    const Recipe& recipe = step.recipe(layer, LinearRole::down);
    if (!recipe.quantized()) continue;
    if (first && !(recipe == *first))
      throw std::invalid_argument(fmt::format("transformer: the down layers are in two recipes, {} and {}",
                                              first->name, recipe.name));
    first = &recipe;
  }
}

void ResidualGradient::push(const Tensor& dx0) {
  const std::int64_t layers = step_.config.layers;
  // The buffers feed the down layers, so any quantized down layer determines the copies they need.
  std::int64_t layer = 0;
  while (layer + 1 < layers && !step_.recipe(layer, LinearRole::down).quantized()) ++layer;
  const Linear consumer = step_.linear(layer, LinearRole::down);
  const GradientCopies copies =
      reads_columnwise(0) || reads_columnwise(layers - 1) ? GradientCopies::all : GradientCopies::rowwise;
  slot_ = 0;
  if (!BranchOutput::plain(step_)) {
    slots_[layers % 2] = make_quantized_tensor(dx0, {}, {});
    slots_[1 - layers % 2] = make_quantized_tensor(step_.push_stream(), {}, {});
    return;
  }
  slots_[layers % 2] = step_.operands.push_gradient(dx0, consumer, copies);
  slots_[1 - layers % 2] = step_.operands.push_gradient(step_.push(step_.config.width), consumer, copies);
}

bool ResidualGradient::reads_columnwise(std::int64_t layer) const {
  return !step_.config.has_experts(layer) || step_.config.moe.shared_ffn > 0;
}

QuantizedTensor ResidualGradient::slot_for(int slot, std::int64_t layer) const {
  const QuantizedTensor& memory = slots_[slot];
  if (layer < 0 || !BranchOutput::plain(step_)) return make_quantized_tensor(memory.value, {}, {});
  const Linear consumer = step_.linear(layer, LinearRole::down);
  if (!consumer.recipe().quantized()) return make_quantized_tensor(memory.value, {}, {});
  QuantizedTensor gradient = memory;
  use_slot(gradient, consumer.slots().dy);
  if (!reads_columnwise(layer) && consumer.dy_columnwise().quantized()) gradient.columnwise = {};
  return gradient;
}

}  // namespace precbench
