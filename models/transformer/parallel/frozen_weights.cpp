// Frozen weights of a model with adapters. See frozen_weights.h.
#include "models/transformer/parallel/frozen_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "models/transformer/state/shared_layout.h"

namespace precbench {
namespace {

std::int64_t aligned(std::int64_t elements) {
  return (elements + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

bool can_keep_copy(const QuantFormat& format) {
  const bool random_signs =
      format.transform.signs == Signs::backward || format.transform.signs == Signs::gemm;
  return format.quantized() && !format.delayed() && !format.from_fprop && !random_signs && format.eden == 0 &&
         format.element_rounding == ElementRounding::rne;
}

FrozenWeights::FrozenWeights(Device& device, Arena& arena, const ModelConfig& config, Options options)
    : device_(device),
      arena_(arena),
      comm_(options.comm),
      shared_layout_(shared_layout(config, options.comm ? options.comm->size() : 1)),
      layout_(*shared_layout_),
      copies_(static_cast<std::size_t>(config.layers)) {
  if (comm_) options.formats.clear();
  std::int64_t size = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    std::int64_t dropped = 0;
    const std::int64_t layer = layout_.layer_of(u);
    for (const LinearMatrix& m : layer < 0 ? std::vector<LinearMatrix>{} : layout_.block_linears(layer)) {
      const auto role = static_cast<std::size_t>(m.role);
      Copies& copies = copies_[layer][role];
      copies.value = m.offset - dropped;
      if (options.keep_values || options.formats.empty()) continue;
      const FrozenFormats& formats = options.formats[layer];
      if (m.experts > 1 && !formats.one_copy[role]) continue;
      if (!can_keep_copy(formats.fprop[role])) continue;
      if (!formats.one_copy[role] && !can_keep_copy(formats.dgrad[role])) continue;
      copies.value = -1;
      dropped += m.size();
      staged_ = std::max(staged_, m.size());
    }
    offsets_.push_back(size);
    sizes_.push_back(layout_.shard_size(u) - dropped);
    size += dropped == 0 ? layout_.shard_offset(u + 1) - layout_.shard_offset(u) : aligned(sizes_.back());
  }
  weights_ = arena.push(Segment::weights, options.dtype, 1, size);
  std::int64_t discarded = 2 * config.width;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    std::int64_t router = 0;
    for (const LinearMatrix& m : layout_.block_linears(layer))
      if (m.role == LinearRole::router)
        router = aligned(vector_count(layer)) - vector_count(layer) + m.size();
    discarded = std::max(discarded, vector_count(layer) + router);
  }
  push_copies(arena, options);
  discarded_ = arena.push(Segment::workspace, DType::f32, 1, discarded);
  if (comm_)
    exchange_ = std::make_unique<UnitExchange>(
        comm_, arena, layout_,
        UnitExchange::Options{.weights = options.dtype, .keep = options.keep_gathered, .reduce = false});
}

void FrozenWeights::push_copies(Arena& arena, const Options& options) {
  if (options.formats.empty()) return;
  amax_ = arena.push(Segment::workspace, DType::f32, 1, 1);
  for (std::size_t layer = 0; layer < options.formats.size(); ++layer)
    for (const LinearMatrix& m : layout_.block_linears(static_cast<std::int64_t>(layer))) {
      const auto role = static_cast<std::size_t>(m.role);
      const QuantFormat &fprop = options.formats[layer].fprop[role],
                        &dgrad = options.formats[layer].dgrad[role];
      Copies& copies = copies_[layer][role];
      if (m.experts > 1 && !options.formats[layer].one_copy[role])
        continue;  // grouped copies are made on use
      if (can_keep_copy(fprop))
        copies.rowwise = push_gemm_operand(arena, Segment::quantized_weights, fprop, m.rows, m.cols);
      if (can_keep_copy(dgrad))
        copies.columnwise = push_gemm_operand(arena, Segment::quantized_weights, dgrad, m.cols, m.rows);
    }
}

void FrozenWeights::begin_step() {
  if (exchange_) exchange_->forget();
}

void FrozenWeights::prefetch(int unit, Pass pass) {
  if (!exchange_ || exchange_->has(unit, pass)) return;
  exchange_->take_weights(unit, pass);
  exchange_->gather(unit, pass, own(unit), {});
}

Tensor FrozenWeights::unit(int unit, Pass pass) {
  if (!exchange_) return own(unit);
  prefetch(unit, pass);
  return exchange_->weights(unit, pass);
}

Tensor FrozenWeights::vectors(std::int64_t layer) const {
  const Tensor mine = own(layout_.block_unit(layer));
  const std::int64_t size = vector_count(layer);
  return mine.elements(mine.size() - size, size);
}

BlockWeights FrozenWeights::block(std::int64_t layer, Pass pass) {
  const int number = layout_.block_unit(layer);
  if (exchange_) {
    const BlockTensors t = layout_.block(layer, unit(number, pass));
    BlockWeights block{t};
    for (const LinearMatrix& m : layout_.block_linears(layer)) block[m.role].value = t[m.role];
    return block;
  }
  BlockWeights block{layout_.block_vectors(layer, vectors(layer))};
  for (const LinearMatrix& m : layout_.block_linears(layer)) {
    const Copies& c = copies(layer, m.role);
    Tensor value;
    if (c.value >= 0) value = own(number).elements(c.value, m.size()).reshape(m.rows, m.cols);
    block[m.role] = {value, c.rowwise, c.columnwise};
  }
  return block;
}

void FrozenWeights::quantize(const Copies& copies, const Tensor& value) const {
  // One at a time, as a GEMM makes them (Linear): each has the amax of its own pass.
  for (const GemmOperand* copy : {&copies.rowwise, &copies.columnwise}) {
    if (copy->empty()) continue;
    QuantizedTensor w = make_quantized_tensor(value, {}, {});
    (copy == &copies.rowwise ? w.rowwise : w.columnwise) = *copy;
    if (copy->format.granularity == Granularity::tensor) w.amax_out = amax_;
    device_.quantize({w, true});
  }
}

void FrozenWeights::quantize() const {
  if (comm_) return;  // no copies are kept
  for (std::size_t layer = 0; layer < copies_.size(); ++layer)
    for (const LinearMatrix& m : layout_.block_linears(static_cast<std::int64_t>(layer)))
      if (const Copies& c = copies(static_cast<std::int64_t>(layer), m.role); c.value >= 0)
        quantize(c, own(layout_.block_unit(static_cast<std::int64_t>(layer)))
                        .elements(c.value, m.size())
                        .reshape(m.rows, m.cols));
}

std::int64_t FrozenWeights::vector_count(std::int64_t layer) const {
  return layout_.units()[layout_.block_unit(layer)].size - layout_.vectors_offset(layer);
}

BlockTensors FrozenWeights::block_gradients(std::int64_t layer) const {
  BlockTensors g{layout_.block_vectors(layer, discarded_.elements(0, vector_count(layer)))};
  for (const LinearMatrix& m : layout_.block_linears(layer))
    if (m.role == LinearRole::router)
      g[m.role] = discarded_.elements(aligned(vector_count(layer)), m.size()).reshape(m.rows, m.cols);
  return g;
}

void FrozenWeights::initialize(std::uint64_t seed, float std) {
  device_.zero({weights_});  // padding too
  set([&](const Part& part) {
    const Parameter& p = *part.parameter;
    if (part.values.empty()) return;
    if (p.kind == ParameterKind::matrix)
      device_.init_normal({part.values, std, seed, p.in_model + part.first});
    else if (p.kind == ParameterKind::gain)
      device_.fill({part.values, 1.0f});
    else
      device_.zero({part.values});
  });
}

void FrozenWeights::for_each(const Visit& visit) const {
  std::size_t index = 0;
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (const Piece& piece : layout_.pieces(u, shard_rank())) {
      const Parameter& p = *piece.parameter;
      std::int64_t offset = piece.offset;
      if (!comm_ && layout_.is_block(u)) {
        const std::int64_t layer = layout_.layer_of(u), vectors_offset = layout_.vectors_offset(layer);
        offset = p.offset - vectors_offset + own(u).size() - vectors(layer).size();
        for (const LinearMatrix& m : layout_.block_linears(layer))
          if (m.offset <= p.offset && p.offset < m.offset + m.size()) {
            const std::int64_t value = copies(layer, m.role).value;
            offset = value < 0 ? -1 : value + p.offset - m.offset;
          }
      }
      const bool here = offset >= 0 && piece.count > 0;
      visit({index++, &p, piece.first, here ? own(u).elements(offset, piece.count) : Tensor{}});
    }
}

void FrozenWeights::set(const Visit& visit) {
  std::vector<Part> parts;
  for_each([&](const Part& part) { parts.push_back(part); });
  const Scope scope(arena_);
  const Tensor staged = drops_values() ? push_staged() : Tensor{};
  std::size_t next = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const std::vector<Parameter>& parameters = layout_.units()[u].parameters;
    const std::size_t first = next;
    next += parameters.size();
    for (std::size_t i = first; i < next; ++i)
      if (comm_ || !parts[i].values.empty()) visit(parts[i]);
    if (comm_ || !layout_.is_block(u)) continue;
    for (const LinearMatrix& m : layout_.block_linears(layout_.layer_of(u))) {
      const Copies& c = copies(layout_.layer_of(u), m.role);
      if (c.value >= 0) continue;
      for (std::size_t i = first; i < next; ++i) {
        Part part = parts[i];
        const Parameter& p = *part.parameter;
        if (p.offset < m.offset || p.offset >= m.offset + m.size()) continue;
        part.values = staged.elements(p.offset - m.offset, p.size());
        visit(part);
      }
      quantize(c, staged.elements(0, m.size()).reshape(m.rows, m.cols));
    }
  }
}

std::string FrozenWeights::state_name(const Parameter& p) const {
  return fmt::format("{}/{}", kStateKind, p.name);
}

std::vector<StateTensor> FrozenWeights::state() const {
  std::vector<StateTensor> state;
  for_each([&](const Part& part) {
    if (!comm_ && part.values.empty()) return;  // exists as a copy alone
    StateTensor tensor{.name = state_name(*part.parameter), .shape = part.parameter->shape()};
    tensor.values.dtype = weights_.dtype;
    if (!part.values.empty()) tensor.place = part.first, tensor.values = part.values;
    state.push_back(std::move(tensor));
  });
  return state;
}

void FrozenWeights::load(const StateReader& read) {
  set([&](const Part& part) {
    load_state(device_,
               {{.name = state_name(*part.parameter),
                 .shape = part.parameter->shape(),
                 .place = part.first,
                 .values = part.values}},
               read);
  });
}

}  // namespace precbench
