// Biases and load statistics. See routers.h.
#include "models/transformer/routing/routers.h"

#include <algorithm>
#include <utility>

#include "models/transformer/routing/expected_load.h"

namespace precbench {
namespace {

constexpr float kBiasStep = 1e-3f;  // DeepSeek-V3's u

}  // namespace

Routers::Routers(Device& device, Arena& arena, const ModelConfig& model, int accumulation, bool peers)
    : device_(device),
      layers_(model.layers_with_experts()),
      experts_(model.moe.rule.experts),
      accumulation_(accumulation),
      peers_(peers) {
  const auto push = [&](DType dtype, std::int64_t cols) {
    return arena.push(Segment::other, dtype, layers(), cols);
  };
  totals_ = push(DType::f32, report_size());
  bad_ = push(DType::i32, accumulation);
  if (!model.moe.route_bias) return;
  bias_ = push(DType::f32, experts_);
  global_ = push(DType::f32, experts_);
}

std::vector<std::int64_t> Routers::tokens_to_ranks(const RoutingRule& rule, std::int64_t ranks,
                                                   std::int64_t tokens, double capacity) const {
  const std::int64_t own = rule.experts / ranks;
  if (forced_index_.empty())
    return std::vector<std::int64_t>(ranks, tokens_to_rank(rule, own, tokens, capacity));
  std::vector<std::int64_t> counts(ranks), last(ranks, -1);  // last token sent there
  std::vector<std::int64_t> free_rows(rule.experts, most_rows_of_expert(rule, tokens, capacity));
  for (std::int64_t slot = 0; slot < tokens * rule.top_k; ++slot) {
    const std::int64_t expert = forced_index_[slot], rank = expert / own, token = slot / rule.top_k;
    if (free_rows[expert]-- > 0) counts[rank] += std::exchange(last[rank], token) != token;
  }
  return counts;
}

std::int64_t Routers::row(std::int64_t layer) const {
  return std::lower_bound(layers_.begin(), layers_.end(), layer) - layers_.begin();
}

Tensor Routers::bias(std::int64_t layer) const {
  return bias_.empty() ? Tensor{} : bias_.slice_rows(row(layer), 1);
}

Tensor Routers::bad(std::int64_t layer, int micro_step) const {
  return bad_.elements(row(layer) * accumulation_ + micro_step, 1);
}

void Routers::note(std::int64_t layer, int micro_step, const Tensor& report) {
  if (watching_) return;
  const Tensor total = totals_.slice_rows(row(layer), 1);
  if (micro_step == 0)
    device_.convert({total, report});
  else
    device_.add({total, report});
}

void Routers::note_choices(std::int64_t layer, int micro_step, const Tensor& index) {
  if (choices_.empty()) return;
  device_.convert(
      {choices_.slice_rows(row(layer) * accumulation_ + micro_step, 1).elements(0, index.size()), index});
}

void Routers::update(Comm& comm) {
  if (bias_.empty()) return;
  for (std::int64_t i = 0; i < layers(); ++i)
    device_.convert({global_.slice_rows(i, 1), totals_.slice_rows(i, 1).elements(0, experts_)});
  if (comm.size() > 1) comm.all_reduce(global_);
  device_.update_routing_bias({bias_, global_, kBiasStep});
}

void Routers::reset() {
  device_.zero({totals_});
  if (!bias_.empty()) device_.zero({bias_});
}

std::vector<RouterLoad> Routers::load() const {
  std::vector<float> totals(static_cast<std::size_t>(totals_.size()));
  device_.download(totals.data(), totals_);
  std::vector<RouterLoad> all;
  for (std::int64_t i = 0; i < layers(); ++i) {
    const float* report = totals.data() + i * totals_.cols;
    const float* rest = report + experts_;
    all.push_back({layers_[i], std::vector<double>(report, rest), rest[2], rest[3],
                   double{rest[4]} + (peers_ ? rest[5] : 0.0f), static_cast<double>(rest[0]) / accumulation_,
                   static_cast<double>(rest[1]) / accumulation_});
  }
  return all;
}

std::optional<BadToken> Routers::bad_token() const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(bad_.size()));
  device_.download(tokens.data(), bad_);
  for (int micro = 0; micro < accumulation_; ++micro)
    for (std::int64_t i = 0; i < layers(); ++i)
      if (const std::int32_t token = tokens[i * accumulation_ + micro]; token >= 0)
        return BadToken{layers_[i], micro, token};
  return std::nullopt;
}

std::vector<float> Routers::biases() const {
  std::vector<float> values(static_cast<std::size_t>(bias_.size()));
  if (!bias_.empty()) device_.download(values.data(), bias_);
  return values;
}

std::vector<StateTensor> Routers::state(const Layout& layout) const {
  std::vector<StateTensor> state;
  for (std::size_t i = 0; i < layout.buffers().size(); ++i) {
    const Parameter& p = layout.buffers()[i];
    state.push_back({.name = "routing/" + p.name,
                     .shape = p.shape(),
                     .values = bias_.slice_rows(static_cast<std::int64_t>(i), 1)});
  }
  return state;
}

}  // namespace precbench
