// Parameter arithmetic: names, offsets, shards, runs. See layout.h.
#include "models/layout.h"

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

void Layout::add(Unit& unit, const std::string& name, std::int64_t rows, std::int64_t cols, bool matrix) {
  unit.parameters.push_back({name, align_up(unit.size, kAlign), rows, cols, matrix});
  unit.size = unit.parameters.back().offset + rows * cols;
}

void Layout::extend(Unit& unit, const std::string& name, std::int64_t rows) {
  const Parameter& above = unit.parameters.back();
  unit.parameters.push_back({name, unit.size, rows, above.cols, above.matrix});
  unit.size += rows * unit.parameters.back().cols;
}

Unit Layout::make_block(std::int64_t layer) {
  const ModelConfig& c = config_;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  Unit unit;
  add(unit, prefix + "self_attn.q_proj.weight", c.q_width(), c.width, true);
  extend(unit, prefix + "self_attn.k_proj.weight", c.kv_width());
  extend(unit, prefix + "self_attn.v_proj.weight", c.kv_width());
  add(unit, prefix + "self_attn.o_proj.weight", c.width, c.q_width(), true);
  add(unit, prefix + "mlp.gate_proj.weight", c.ffn, c.width, true);
  extend(unit, prefix + "mlp.up_proj.weight", c.ffn);
  add(unit, prefix + "mlp.down_proj.weight", c.width, c.ffn, true);
  add(unit, prefix + "input_layernorm.weight", 1, c.width, false);
  add(unit, prefix + "post_attention_layernorm.weight", 1, c.width, false);
  if (c.qk_norm) {
    add(unit, prefix + "self_attn.q_norm.weight", 1, c.head_dim, false);
    add(unit, prefix + "self_attn.k_norm.weight", 1, c.head_dim, false);
  }
  return unit;
}

Layout::Layout(const ModelConfig& config, int pieces, bool whole_blocks) : config_(config), pieces_(pieces) {
  Unit embedding;
  add(embedding, "model.embed_tokens.weight", config.vocab, config.width, true);
  if (!config.tied) {
    units_.push_back(std::move(embedding));
    first_block_ = 1;
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) units_.push_back(make_block(layer));
  Unit head = config.tied ? std::move(embedding) : Unit{};
  if (!config.tied) add(head, "lm_head.weight", config.vocab, config.width, true);
  add(head, "model.norm.weight", 1, config.width, false);
  units_.push_back(std::move(head));
  embedding_unit_ = config.tied ? head_unit() : 0;

  for (int u = 0; u < unit_count(); ++u)
    shard_sizes_.push_back(pieces == 1 ? units_[u].size
                                       : align_up((units_[u].size + pieces - 1) / pieces, kShardAlign));
  if (whole_blocks && pieces > 1)
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
  for (std::int64_t shard = align_up((size + pieces_ - 1) / pieces_, step);; shard += step) {
    bool whole = true;
    for (int piece = 1; piece < pieces_; ++piece) whole = whole && ends_whole(piece * shard);
    if (whole) return shard;  // at the latest when one shard holds all
  }
}

std::pair<std::int64_t, std::int64_t> Layout::shard_range(int unit, int piece) const {
  const std::int64_t size = units_[unit].size;
  const std::int64_t first = std::min(size, piece * shard_size(unit));
  return {first, std::min(size, first + shard_size(unit))};
}

std::vector<Run> Layout::runs(int unit, int piece) const {
  const auto [first, last] = shard_range(unit, piece);
  std::vector<Run> runs;
  for (const Parameter& p : units_[unit].parameters) {
    const std::int64_t begin = std::max(first, p.offset), end = std::min(last, p.offset + p.size());
    if (begin >= end) continue;
    if (!runs.empty() && runs.back().decay == p.matrix &&
        runs.back().first + runs.back().count == begin - first)
      runs.back().count += end - begin;
    else
      runs.push_back({begin - first, end - begin, p.matrix});
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
  t.norm1 = view(unit, p[7].offset, 1, c.width);
  t.norm2 = view(unit, p[8].offset, 1, c.width);
  if (c.qk_norm) {
    t.q_norm = view(unit, p[9].offset, 1, c.head_dim);
    t.k_norm = view(unit, p[10].offset, 1, c.head_dim);
  }
  return t;
}

Tensor Layout::embedding(const Tensor& unit) const { return view(unit, 0, config_.vocab, config_.width); }

Tensor Layout::lm_head(const Tensor& unit) const { return view(unit, 0, config_.vocab, config_.width); }

Tensor Layout::final_norm(const Tensor& unit) const {
  return view(unit, units_.back().parameters[1].offset, 1, config_.width);
}

}  // namespace precbench
