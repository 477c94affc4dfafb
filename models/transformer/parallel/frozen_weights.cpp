// Frozen weights of a model with adapters. See frozen_weights.h.
#include "models/transformer/parallel/frozen_weights.h"

#include <fmt/format.h>

#include <algorithm>

namespace precbench {

bool can_keep_copy(const QuantFormat& format) {
  const bool random_signs =
      format.transform.signs == Signs::backward || format.transform.signs == Signs::gemm;
  return format.quantized() && !format.delayed() && !format.from_fprop && !random_signs && format.eden == 0 &&
         format.element_rounding == ElementRounding::rne;
}

FrozenWeights::FrozenWeights(Device& device, Arena& arena, const ModelConfig& config, DType dtype,
                             const std::vector<FrozenFormats>& formats)
    : device_(device), layout_(config, 1), copies_(formats.size()) {
  weights_ = arena.push(Segment::weights, dtype, 1, layout_.local_size());
  std::int64_t vectors = 2 * config.width;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    vectors =
        std::max(vectors, layout_.units()[layout_.block_unit(layer)].size - layout_.vectors_offset(layer));
  if (!formats.empty()) amax_ = arena.push(Segment::workspace, DType::f32, 1, 1);
  for (std::size_t layer = 0; layer < formats.size(); ++layer)
    for (const LinearMatrix& m : layout_.block_linears(static_cast<std::int64_t>(layer))) {
      const auto role = static_cast<std::size_t>(m.role);
      const QuantFormat &fprop = formats[layer].fprop[role], &dgrad = formats[layer].dgrad[role];
      Copies& copies = copies_[layer][role];
      if (can_keep_copy(fprop))
        copies.rowwise = push_gemm_operand(arena, Segment::quantized_weights, fprop, m.rows, m.cols);
      if (can_keep_copy(dgrad))
        copies.columnwise = push_gemm_operand(arena, Segment::quantized_weights, dgrad, m.cols, m.rows);
    }
  discarded_ = arena.push(Segment::workspace, DType::f32, 1, vectors);
}

BlockWeights FrozenWeights::block(std::int64_t layer) const {
  const BlockTensors t = layout_.block(layer, unit(layout_.block_unit(layer)));
  BlockWeights block{t};
  for (const LinearMatrix& m : layout_.block_linears(layer)) {
    block[m.role].value = t[m.role];
    if (copies_.empty()) continue;
    const Copies& copies = copies_[layer][static_cast<std::size_t>(m.role)];
    block[m.role].rowwise = copies.rowwise;
    block[m.role].columnwise = copies.columnwise;
  }
  return block;
}

void FrozenWeights::quantize() const {
  for (std::size_t layer = 0; layer < copies_.size(); ++layer) {
    const BlockWeights weights = block(static_cast<std::int64_t>(layer));
    for (const LinearMatrix& m : layout_.block_linears(static_cast<std::int64_t>(layer))) {
      const Weight& weight = weights[m.role];
      // One at a time, as a GEMM makes them (Linear): each has the amax of its own pass.
      for (const GemmOperand* copy : {&weight.rowwise, &weight.columnwise}) {
        if (copy->empty()) continue;
        QuantizedTensor w = make_quantized_tensor(weight.value, {}, {});
        (copy == &weight.rowwise ? w.rowwise : w.columnwise) = *copy;
        if (copy->format.granularity == Granularity::tensor) w.amax_out = amax_;
        device_.quantize({w, true});
      }
    }
  }
}

BlockTensors FrozenWeights::block_gradients(std::int64_t layer) const {
  const std::int64_t size = layout_.units()[layout_.block_unit(layer)].size - layout_.vectors_offset(layer);
  return {layout_.block_vectors(layer, discarded_.elements(0, size))};
}

void FrozenWeights::initialize(std::uint64_t seed, float std) {
  device_.zero({weights_});  // biases too
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (const Run& run : layout_.runs(u, 0)) {
      const Tensor elements = unit(u).elements(run.first, run.count);
      if (run.kind == ParameterKind::matrix)
        device_.init_normal({elements, std, seed, run.in_model});
      else if (run.kind == ParameterKind::gain)
        device_.fill({elements, 1.0f});
    }
}

void FrozenWeights::for_each(
    const std::function<void(std::size_t, const Parameter&, const Tensor&)>& visit) const {
  std::size_t index = 0;
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (const Parameter& p : layout_.units()[u].parameters)
      visit(index++, p, unit(u).elements(p.offset, p.size()));
}

std::vector<StateTensor> FrozenWeights::state() const {
  std::vector<StateTensor> state;
  for_each([&](std::size_t, const Parameter& p, const Tensor& values) {
    state.push_back({.name = fmt::format("{}/{}", kStateKind, p.name), .shape = p.shape(), .values = values});
  });
  return state;
}

}  // namespace precbench
