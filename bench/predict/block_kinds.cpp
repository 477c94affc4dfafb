// Tells a model's blocks apart. See block_kinds.h.
#include "bench/predict/block_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/predict/pipeline.h"

namespace precbench {
namespace {

/// Returns a model all of whose blocks are like one of its own.
ModelConfig uniform_model(ModelConfig model, std::int64_t layer) {
  if (model.moe && !model.has_experts(layer)) model.moe = {};
  model.moe.dense_layers = 0, model.moe.layer_interval = 1;
  model.sliding_window = model.window(layer);
  model.block.local_layers.clear();
  model.block.local_rope_theta = 0;
  return model;
}

}  // namespace

KindCounts BlockKinds::counts(std::int64_t begin, std::int64_t end) const {
  KindCounts counts(models.size());
  for (std::int64_t layer = begin; layer < end; ++layer) ++counts[of_layer[static_cast<std::size_t>(layer)]];
  return counts;
}

std::size_t BlockKinds::most_common() const {
  const KindCounts all = counts(0, static_cast<std::int64_t>(of_layer.size()));
  return static_cast<std::size_t>(std::max_element(all.begin(), all.end()) - all.begin());
}

BlockKinds block_kinds(const ModelConfig& model) {
  BlockKinds kinds;
  std::vector<std::pair<bool, std::int64_t>> known;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::pair kind = {model.has_experts(layer), model.window(layer)};
    const auto at = std::find(known.begin(), known.end(), kind);
    kinds.of_layer.push_back(static_cast<std::size_t>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(kind);
    kinds.models.push_back(uniform_model(model, layer));
  }
  if (kinds.models.size() == 1) kinds.models.front() = model;
  return kinds;
}

std::pair<Case, ParallelLayout> case_of_kind(Case c, ParallelLayout layout, const ModelConfig& kind) {
  if (!kind.moe) {
    const Case defaults;
    c.ep = defaults.ep, c.exchange = defaults.exchange, c.slots = defaults.slots,
    c.dispatch = defaults.dispatch;
    c.routing = defaults.routing, c.capacity = defaults.capacity;
    c.aux = defaults.aux, c.z_loss = defaults.z_loss;
    layout.experts = 1;
  }
  return {std::move(c), layout};
}

std::vector<std::vector<KindCounts>> kinds_by_group(const BlockKinds& kinds, const ParallelLayout& layout) {
  const auto layers = static_cast<std::int64_t>(kinds.of_layer.size());
  const auto counts = layers_by_group(layers, layout.pipeline, layout.interleave);
  std::vector<std::vector<KindCounts>> found(counts.size());
  std::int64_t begin = 0;
  for (std::size_t group = 0; group < static_cast<std::size_t>(layout.interleave); ++group)
    for (std::size_t stage = 0; stage < counts.size(); ++stage) {
      const std::int64_t end = begin + counts[stage][group];
      found[stage].push_back(kinds.counts(begin, end));
      begin = end;
    }
  return found;
}

KindCounts layers_of_stage(const std::vector<KindCounts>& groups) {
  KindCounts layers(groups.front().size());
  for (const KindCounts& group : groups)
    for (std::size_t kind = 0; kind < group.size(); ++kind) layers[kind] += group[kind];
  return layers;
}

ModelConfig deepened(ModelConfig model, std::int64_t layers) {
  model.layers = std::max(model.layers, layers);
  return model;
}

std::string stage_key(Case c, const ParallelLayout& layout) {
  c.accumulation = std::min(c.accumulation, kTracedMicroSteps);
  return fmt::format("{} {} {} {} {} {}{}{}{} {}", layout.tensor, layout.context, layout.data,
                     layout.pipeline, layout.experts, int{layout.tensor_fp8}, int{layout.tensor_overlap},
                     int{layout.context_overlap}, int{layout.sharded_optimizer},
                     case_to_json(c).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace precbench
