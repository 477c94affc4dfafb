// Names, offsets, shards and runs of parameters. See layout.h.
#include "models/transformer/state/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace precbench {
namespace {

// Tensors start at multiples of 8 elements: 16 bytes in BF16, for cuBLASLt and vector loads.
constexpr std::int64_t kAlign = 8;
// Shards start at multiples of 128 elements, so that every rank's flat buffers stay aligned.
constexpr std::int64_t kShardAlign = 128;

std::int64_t align_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

Tensor view(const Tensor& unit, std::int64_t offset, std::int64_t rows, std::int64_t cols) {
  return unit.elements(offset, rows * cols).reshape(rows, cols);
}

/// Appends parameters that are used as one tensor, so only the first may be preceded by a hole. A part's size
/// is rows of a matrix with `cols` columns, or elements of a vector.
void append(Unit& unit, const std::string& prefix, const std::vector<ParameterPart>& parts,
            ParameterKind kind, std::int64_t cols = 0) {
  unit.size = align_up(unit.size, kAlign);
  for (const ParameterPart& part : parts) {
    const bool matrix = kind == ParameterKind::matrix;
    unit.parameters.push_back(
        {prefix + part.name, unit.size, matrix ? part.size : 1, matrix ? cols : part.size, kind});
    unit.size += unit.parameters.back().size();
  }
}

/// Returns the part of a parameter among the elements [first, last) of its unit.
Piece piece_within(const Parameter& p, std::int64_t first, std::int64_t last) {
  const std::int64_t begin = std::max(first, p.offset), end = std::min(last, p.offset + p.size());
  return begin < end ? Piece{&p, begin - p.offset, begin - first, end - begin} : Piece{&p};
}

}  // namespace

Parameter Parameter::whole() const {
  Parameter all = *this;
  if (slice) all.rows = slice->rows, all.cols = slice->cols, all.slice = {};
  return all;
}

Parameter Parameter::slice_of(int tensor_rank) const {
  Parameter other = *this;
  if (!slice) return other;
  if (slice->rows > rows) other.slice->first_row = tensor_rank * rows;
  if (slice->cols > cols) other.slice->first_col = tensor_rank * cols;
  return other;
}

ElementMap Parameter::in_whole() const {
  if (!slice) return {};
  const std::int64_t first = slice->first_row * slice->cols + slice->first_col;
  return slice->cols > cols ? ElementMap(first, cols, slice->cols) : ElementMap(first);
}

std::vector<std::int64_t> Parameter::shape() const {
  const Parameter all = whole();
  return kind == ParameterKind::matrix ? std::vector<std::int64_t>{all.rows, all.cols}
                                       : std::vector<std::int64_t>{all.cols};
}

ModelConfig tensor_share(ModelConfig model, int ranks) {
  model.heads /= ranks;
  model.kv_heads /= ranks;
  model.ffn /= ranks;
  model.vocab /= ranks;
  return model;
}

Unit Layout::make_block(std::int64_t layer) const {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  Unit unit;
  const BlockSpec& block = kind_of(layer).spec;
  for (const LinearSpec& linear : block.linears)
    append(unit, prefix, linear.parts, ParameterKind::matrix, linear.in);
  for (const VectorSpec& vector : block.vectors) append(unit, prefix, vector.parts, vector.kind);
  return unit;
}

/// Adds a block's unit, with expert parallelism split into its dense rest and two expert units. in_model
/// stays that of the whole.
void Layout::push_block(std::int64_t layer, Unit block) {
  block_units_.push_back(unit_count());
  block.layer = layer;
  if (!experts_apart(layer)) {
    units_.push_back(std::move(block));
    return;
  }
  const std::vector<LinearSpec>& linears = kind_of(layer).spec.linears;
  std::vector<Unit> apart(1);
  auto next = block.parameters.begin();
  const auto move_to = [&](Unit& unit, std::size_t count) {
    unit.layer = layer;
    unit.size = align_up(unit.size, kAlign);
    for (; count > 0; --count, ++next) {
      unit.parameters.push_back(std::move(*next));
      unit.parameters.back().offset = unit.size;
      unit.size += unit.parameters.back().size();
    }
  };
  for (const LinearSpec& linear : linears) {
    if (linear.experts > 1) apart.emplace_back().experts = linear.role;
    move_to(linear.experts > 1 ? apart.back() : apart.front(), linear.parts.size());
  }
  for (const VectorSpec& vector : kind_of(layer).spec.vectors) move_to(apart.front(), vector.parts.size());
  for (Unit& unit : apart) units_.push_back(std::move(unit));
}

void Layout::find_block_tensors(std::int64_t layer) {
  BlockKind& kind = kinds_[config_.has_experts(layer)];
  const Unit& unit = units_[block_unit(layer)];
  auto parameter = unit.parameters.begin();
  for (const LinearSpec& linear : kind.spec.linears) {
    if (linear.experts > 1 && experts_apart(layer)) continue;
    kind.linears.push_back({linear.role, parameter->offset, linear.out(), linear.in, linear.experts});
    parameter += static_cast<std::ptrdiff_t>(linear.parts.size());
  }
  kind.vectors_offset = parameter->offset;
  kind.size = unit.size;
  for (const VectorSpec& vector : kind.spec.vectors) {
    kind.vector_offsets.push_back(parameter->offset);
    parameter += static_cast<std::ptrdiff_t>(vector.parts.size());
  }
}

void Layout::mark_slices(const Layout& whole, int tensor_rank) {
  for (int u = 0; u < unit_count(); ++u)
    for (std::size_t i = 0; i < units_[u].parameters.size(); ++i) {
      Parameter& mine = units_[u].parameters[i];
      const Parameter& all = whole.units_[u].parameters[i];
      mine.in_model = all.in_model;
      if (mine.rows == all.rows && mine.cols == all.cols) continue;
      mine.slice = MatrixSlice{all.rows, all.cols};
      mine = mine.slice_of(tensor_rank);
    }
}

Layout::Layout(const ModelConfig& whole_model, int shards, bool whole_blocks, const ExpertShare& experts,
               const TensorShare& tensor)
    : config_(tensor_share(whole_model, tensor.ranks)), shards_(shards), experts_(experts) {
  const ModelConfig& config = config_;
  std::int64_t model = 0;
  const auto place = [&](Unit& unit) {
    for (Parameter& p : unit.parameters) p.in_model = model + p.offset;
    model += unit.size;
  };
  Unit embedding;
  append(embedding, "", {{"model.embed_tokens.weight", config.vocab}}, ParameterKind::matrix, config.width);
  if (config.learned_positions > 0) {
    append(embedding, "", {{"model.embed_positions.weight", config.learned_positions}}, ParameterKind::matrix,
           config.width);
    positions_offset_ = embedding.parameters.back().offset;
  }
  if (!config.tied) {
    place(embedding);
    units_.push_back(embedding);
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    BlockKind& kind = kinds_[config.has_experts(layer)];
    const bool first_of_kind = kind.size == 0;
    if (first_of_kind) kind.spec = block_of(config, layer);
    Unit block = make_block(layer);
    place(block);
    push_block(layer, std::move(block));
    if (first_of_kind) find_block_tensors(layer);
    if (config.has_experts(layer) && config.moe.route_bias)
      buffers_.push_back(
          {route_bias_name(config, layer), 0, 1, config.moe.rule.experts, ParameterKind::bias});
  }
  Unit head = config.tied ? std::move(embedding) : Unit{};
  if (!config.tied) append(head, "", head_linear(config).parts, ParameterKind::matrix, config.width);
  append(head, "", {{"model.norm.weight", config.width}}, gain_kind(config));
  final_norm_offset_ = head.parameters.back().offset;
  if (config.block.norm_bias) {
    append(head, "", {{"model.norm.bias", config.width}}, ParameterKind::bias);
    final_norm_bias_offset_ = head.parameters.back().offset;
  }
  if (config.head_bias) {
    append(head, "", {{"lm_head.bias", config.vocab}}, ParameterKind::bias);
    head_bias_offset_ = head.parameters.back().offset;
  }
  place(head);
  units_.push_back(std::move(head));
  embedding_unit_ = config.tied ? head_unit() : 0;
  if (tensor.ranks > 1) mark_slices(Layout(whole_model, 1), tensor.rank);

  for (int u = 0; u < unit_count(); ++u)
    shard_sizes_.push_back(is_experts(u) ? units_[u].size / experts.ranks
                           : shards == 1 ? units_[u].size
                                         : align_up((units_[u].size + shards - 1) / shards, kShardAlign));
  if (whole_blocks && shards > 1) {
    std::optional<std::int64_t> size_of_kind[2];
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      std::optional<std::int64_t>& size = size_of_kind[config.has_experts(layer)];
      if (!size) size = whole_block_shard(layer);
      shard_sizes_[block_unit(layer)] = *size;
    }
  }

  place_shards();
}

void Layout::place_shards() {
  shard_offsets_.assign(1, 0);
  for (int u = 0; u < unit_count(); ++u)
    shard_offsets_.push_back(shard_offsets_.back() + align_up(shard_size(u), kShardAlign));
}

std::int64_t LoraMatrices::out() const {
  return std::accumulate(outputs.begin(), outputs.end(), std::int64_t{0},
                         [](std::int64_t sum, const Output& output) { return sum + output.out; });
}

Layout::Layout(const ModelConfig& config, const LoraOptions& lora) : config_(config), shards_(1) {
  if (!config.tied) units_.emplace_back();
  std::int64_t model = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    block_units_.push_back(unit_count());
    Unit& unit = units_.emplace_back();
    unit.layer = layer;
    std::vector<LoraMatrices>& adapters = lora_[config.has_experts(layer)];
    adapters.clear();  // the same in every block of a kind
    for (const LinearSpec& linear : block_of(config, layer).linears) {
      if (!has_adapter(linear)) continue;
      std::vector<ParameterPart> inputs;
      for (const ParameterPart& part : linear.parts)
        inputs.push_back({lora_a_name(prefix + part.name), lora.rank});
      const std::size_t first = unit.parameters.size();
      append(unit, "", inputs, ParameterKind::matrix, linear.in);
      LoraMatrices& matrices = adapters.emplace_back(
          LoraMatrices{linear.role, linear.in, lora.rank, unit.parameters[first].offset, {}});
      for (const ParameterPart& part : linear.parts) {
        append(unit, "", {{lora_b_name(prefix + part.name), part.size}}, ParameterKind::matrix, lora.rank);
        matrices.outputs.push_back({unit.parameters.back().offset, part.size});
      }
    }
    for (Parameter& p : unit.parameters) p.in_model = model + p.offset;
    model += unit.size;
  }
  units_.emplace_back();
  embedding_unit_ = config.tied ? head_unit() : 0;
  for (const Unit& unit : units_) shard_sizes_.push_back(unit.size);
  place_shards();
}

std::vector<int> Layout::backward_order() const {
  std::vector<int> order;
  for (int u = head_unit(); u >= 0; --u)
    if (u != embedding_unit_) order.push_back(u);
  order.push_back(embedding_unit_);
  return order;
}

std::int64_t Layout::whole_block_shard(std::int64_t layer) const {
  const std::vector<LinearMatrix>& linears = block_linears(layer);
  const auto ends_whole = [&](std::int64_t end) {
    for (const LinearMatrix& m : linears)
      if (end > m.offset && end < m.offset + m.size()) return (end - m.offset) % (128 * m.cols) == 0;
    return true;
  };
  std::int64_t step = 0;  // distance of candidates: gcd of 128 rows of all matrices
  for (const LinearMatrix& m : linears) step = std::gcd(step, 128 * m.cols);
  const std::int64_t size = kind_of(layer).size;
  for (std::int64_t shard = align_up((size + shards_ - 1) / shards_, step);; shard += step) {
    bool whole = true;
    for (int shard_rank = 1; whole && shard_rank < shards_; ++shard_rank)
      whole = ends_whole(shard_rank * shard);
    if (whole) return shard;  // holds at the latest when one shard holds everything
  }
}

std::pair<std::int64_t, std::int64_t> Layout::shard_range(int unit, int shard_rank) const {
  const std::int64_t size = units_[unit].size, part = is_experts(unit) ? experts_.rank : shard_rank;
  const std::int64_t first = std::min(size, part * shard_size(unit));
  return {first, std::min(size, first + shard_size(unit))};
}

std::vector<Piece> Layout::pieces(int unit, int shard_rank) const {
  const auto [first, last] = shard_range(unit, shard_rank);
  const std::vector<Parameter>& parameters = units_[unit].parameters;
  std::vector<Piece> pieces;
  pieces.reserve(parameters.size());
  for (const Parameter& p : parameters) pieces.push_back(piece_within(p, first, last));
  return pieces;
}

std::vector<Run> Layout::runs(int unit, int shard_rank) const {
  const auto [begin, end] = shard_range(unit, shard_rank);
  std::vector<Run> runs;
  for (const Parameter& p : units_[unit].parameters) {
    const Piece piece = piece_within(p, begin, end);
    if (piece.count == 0) continue;
    const ParameterKind kind = piece.parameter->kind;
    const ElementMap in_model = piece.in_model();
    const Run* last = runs.empty() ? nullptr : &runs.back();
    if (last && last->kind == kind && last->first + last->count == piece.offset &&
        last->in_model.from(last->count) == in_model)
      runs.back().count += piece.count;
    else
      runs.push_back({piece.offset, piece.count, kind, in_model});
  }
  return runs;
}

BlockTensors Layout::block(std::int64_t layer, const Tensor& unit) const {
  const BlockKind& kind = kind_of(layer);
  BlockTensors t{block_vectors(layer, unit.elements(kind.vectors_offset, kind.size - kind.vectors_offset))};
  for (const LinearMatrix& m : kind.linears) t[m.role] = view(unit, m.offset, m.rows, m.cols);
  return t;
}

Tensor Layout::expert_stack(int unit, const Tensor& part) const {
  const std::int64_t cols = units_[unit].parameters.front().cols;
  return view(part, 0, part.size() / cols, cols);
}

BlockVectors Layout::block_vectors(std::int64_t layer, const Tensor& vectors) const {
  const BlockKind& kind = kind_of(layer);
  const std::vector<VectorSpec>& specs = kind.spec.vectors;
  BlockVectors t;
  for (std::size_t i = 0; i < specs.size(); ++i)
    t.*specs[i].tensor = vectors.elements(kind.vector_offsets[i] - kind.vectors_offset, specs[i].size());
  return t;
}

Tensor Layout::embedding(const Tensor& unit) const { return view(unit, 0, config_.vocab, config_.width); }

Tensor Layout::lm_head(const Tensor& unit) const { return view(unit, 0, config_.vocab, config_.width); }

std::int64_t Unit::vectors_offset() const {
  const auto is_matrix = [](const Parameter& p) { return p.kind == ParameterKind::matrix; };
  const auto first = std::find_if(parameters.rbegin(), parameters.rend(), is_matrix).base();
  return first == parameters.end() ? size : first->offset;
}

Tensor Layout::final_norm(const Tensor& unit) const {
  return view(unit, final_norm_offset_, 1, config_.width);
}

Tensor Layout::final_norm_bias(const Tensor& unit) const {
  return config_.block.norm_bias ? view(unit, final_norm_bias_offset_, 1, config_.width) : Tensor{};
}

Tensor Layout::head_bias(const Tensor& unit) const {
  return config_.head_bias ? view(unit, head_bias_offset_, 1, config_.vocab) : Tensor{};
}

Tensor Layout::positions(const Tensor& unit) const {
  const std::int64_t rows = config_.learned_positions;
  return rows > 0 ? view(unit, positions_offset_, rows, config_.width) : Tensor{};
}

}  // namespace precbench
