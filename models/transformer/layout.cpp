// Parameter arithmetic: names, offsets, shards, runs. See layout.h.
#include "models/transformer/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace precbench {
namespace {

// Tensors start at multiples of 8 elements: 16 bytes in BF16, which cuBLASLt and vector loads want.
constexpr std::int64_t kAlign = 8;
// Shards start at multiples of 128 elements, so that every rank's flat buffers stay aligned.
constexpr std::int64_t kShardAlign = 128;

std::int64_t align_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

Tensor view(const Tensor& unit, std::int64_t offset, std::int64_t rows, std::int64_t cols) {
  return unit.elements(offset, rows * cols).reshape(rows, cols);
}

}  // namespace

void Layout::add_matrix(Unit& unit, const std::string& name, std::int64_t rows, std::int64_t cols) {
  unit.parameters.push_back({name, align_up(unit.size, kAlign), rows, cols, ParameterKind::matrix});
  unit.size = unit.parameters.back().offset + rows * cols;
}

void Layout::add_vector(Unit& unit, const std::string& name, std::int64_t size, ParameterKind kind) {
  unit.parameters.push_back({name, align_up(unit.size, kAlign), 1, size, kind});
  unit.size = unit.parameters.back().offset + size;
}

void Layout::extend(Unit& unit, const std::string& name, std::int64_t count) {
  Parameter more = unit.parameters.back();
  (more.kind == ParameterKind::matrix ? more.rows : more.cols) = count;
  more.name = name;
  more.offset = unit.size;
  unit.size += more.size();
  unit.parameters.push_back(std::move(more));
}

Unit Layout::make_block(std::int64_t layer) {
  const ModelConfig& c = config_;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  Unit unit;
  add_matrix(unit, prefix + "self_attn.q_proj.weight", c.q_width(), c.width);
  extend(unit, prefix + "self_attn.k_proj.weight", c.kv_width());
  extend(unit, prefix + "self_attn.v_proj.weight", c.kv_width());
  add_matrix(unit, prefix + "self_attn.o_proj.weight", c.width, c.q_width());
  add_matrix(unit, prefix + "mlp.gate_proj.weight", c.ffn, c.width);
  extend(unit, prefix + "mlp.up_proj.weight", c.ffn);
  add_matrix(unit, prefix + "mlp.down_proj.weight", c.width, c.ffn);
  add_vector(unit, prefix + "input_layernorm.weight", c.width, ParameterKind::gain);
  add_vector(unit, prefix + "post_attention_layernorm.weight", c.width, ParameterKind::gain);
  if (c.qk_norm) {
    add_vector(unit, prefix + "self_attn.q_norm.weight", c.head_dim, ParameterKind::gain);
    add_vector(unit, prefix + "self_attn.k_norm.weight", c.head_dim, ParameterKind::gain);
  }
  if (c.qkv_bias) {
    add_vector(unit, prefix + "self_attn.q_proj.bias", c.q_width(), ParameterKind::bias);
    extend(unit, prefix + "self_attn.k_proj.bias", c.kv_width());
    extend(unit, prefix + "self_attn.v_proj.bias", c.kv_width());
  }
  return unit;
}

Layout::Layout(const ModelConfig& config, int shards, bool whole_blocks) : config_(config), shards_(shards) {
  Unit embedding;
  add_matrix(embedding, "model.embed_tokens.weight", config.vocab, config.width);
  if (!config.tied) {
    units_.push_back(std::move(embedding));
    first_block_ = 1;
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) units_.push_back(make_block(layer));
  Unit head = config.tied ? std::move(embedding) : Unit{};
  if (!config.tied) add_matrix(head, "lm_head.weight", config.vocab, config.width);
  add_vector(head, "model.norm.weight", config.width, ParameterKind::gain);
  units_.push_back(std::move(head));
  embedding_unit_ = config.tied ? head_unit() : 0;

  for (int u = 0; u < unit_count(); ++u)
    shard_sizes_.push_back(shards == 1 ? units_[u].size
                                       : align_up((units_[u].size + shards - 1) / shards, kShardAlign));
  if (whole_blocks && shards > 1)
    std::fill_n(shard_sizes_.begin() + first_block_, config.layers, whole_block_shard());

  shard_offsets_.assign(1, 0);
  model_offsets_.assign(1, 0);
  for (int u = 0; u < unit_count(); ++u) {
    shard_offsets_.push_back(shard_offsets_.back() + align_up(shard_size(u), kShardAlign));
    model_offsets_.push_back(model_offsets_.back() + units_[u].size);
  }
}

std::vector<int> Layout::backward_order() const {
  std::vector<int> order;
  for (int u = head_unit(); u >= 0; --u)
    if (u != embedding_unit_) order.push_back(u);
  order.push_back(embedding_unit_);
  return order;
}

std::int64_t Layout::whole_block_shard() const {
  const auto ends_whole = [&](std::int64_t end) {
    for (const Matrix& m : block_matrices())
      if (end > m.offset && end < m.offset + m.size()) return (end - m.offset) % (128 * m.cols) == 0;
    return true;
  };
  std::int64_t step = 0;  // between candidates: what 128 rows of all the matrices have in common
  for (const Matrix& m : block_matrices()) step = std::gcd(step, 128 * m.cols);
  const std::int64_t size = units_[first_block_].size;
  for (std::int64_t shard = align_up((size + shards_ - 1) / shards_, step);; shard += step) {
    bool whole = true;
    for (int shard_rank = 1; shard_rank < shards_; ++shard_rank)
      whole = whole && ends_whole(shard_rank * shard);
    if (whole) return shard;  // at the latest when one shard holds all
  }
}

std::pair<std::int64_t, std::int64_t> Layout::shard_range(int unit, int shard_rank) const {
  const std::int64_t size = units_[unit].size;
  const std::int64_t first = std::min(size, shard_rank * shard_size(unit));
  return {first, std::min(size, first + shard_size(unit))};
}

std::vector<Run> Layout::runs(int unit, int shard_rank) const {
  const auto [first, last] = shard_range(unit, shard_rank);
  std::vector<Run> runs;
  for (const Parameter& p : units_[unit].parameters) {
    const std::int64_t begin = std::max(first, p.offset), end = std::min(last, p.offset + p.size());
    if (begin >= end) continue;
    if (!runs.empty() && runs.back().kind == p.kind && runs.back().first + runs.back().count == begin - first)
      runs.back().count += end - begin;
    else
      runs.push_back({begin - first, end - begin, p.kind});
  }
  return runs;
}

std::array<Layout::Matrix, 4> Layout::block_matrices() const {
  const ModelConfig& c = config_;
  const std::vector<Parameter>& p = units_[first_block_].parameters;
  return {{{p[0].offset, c.q_width() + 2 * c.kv_width(), c.width},
           {p[3].offset, c.width, c.q_width()},
           {p[4].offset, 2 * c.ffn, c.width},
           {p[6].offset, c.width, c.ffn}}};
}

BlockTensors Layout::block(const Tensor& unit) const {
  const ModelConfig& c = config_;
  const std::vector<Parameter>& p = units_[first_block_].parameters;  // all blocks are alike
  BlockTensors t;
  const std::array<Matrix, 4> matrices = block_matrices();
  const auto matrix = [&](const Matrix& m) { return view(unit, m.offset, m.rows, m.cols); };
  t.qkv = matrix(matrices[0]);
  t.o = matrix(matrices[1]);
  t.gate_up = matrix(matrices[2]);
  t.down = matrix(matrices[3]);
  std::size_t next = 7;
  const auto vector = [&](std::int64_t size) { return view(unit, p[next++].offset, 1, size); };
  t.norm1 = vector(c.width);
  t.norm2 = vector(c.width);
  if (c.qk_norm) {
    t.q_norm = vector(c.head_dim);
    t.k_norm = vector(c.head_dim);
  }
  if (c.qkv_bias) t.qkv_bias = vector(c.q_width() + 2 * c.kv_width());
  return t;
}

Tensor Layout::embedding(const Tensor& unit) const { return view(unit, 0, config_.vocab, config_.width); }

Tensor Layout::lm_head(const Tensor& unit) const { return view(unit, 0, config_.vocab, config_.width); }

Tensor Layout::final_norm(const Tensor& unit) const {
  return view(unit, units_.back().parameters[1].offset, 1, config_.width);
}

}  // namespace precbench
