// Tells a model's blocks apart. See block_kinds.h.
#include "bench/predict/block_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "bench/case/choose_layers.h"
#include "bench/case/recompute.h"
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

/// Returns the words of --keep-bf16 that leave the linear layers of `roles`, a block's, unconverted in every block.
std::string words_to_keep(KeepBf16 keep, const ConvertedLayers::Roles& roles) {
  keep.first = keep.last = {};
  keep.blocks.clear();
  keep.first_linear = false;
  const auto is_converted = [&](LinearRole role) { return roles[static_cast<std::size_t>(role)]; };
  const bool parts = std::any_of(std::begin(kQkvParts), std::end(kQkvParts), is_converted);
  for (int role = 0; role < static_cast<int>(LinearRole::head); ++role)
    if (!is_converted(static_cast<LinearRole>(role)) &&
        !(parts && static_cast<LinearRole>(role) == LinearRole::qkv))
      keep.roles[static_cast<std::size_t>(role)] = true;
  for (const LinearRole part : kQkvParts)
    if (parts && !is_converted(part)) keep.roles[static_cast<std::size_t>(part)] = true;
  const std::vector<std::string> words = words_of(keep);
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ","));
}

}  // namespace

KindCounts BlockKinds::counts(std::int64_t begin, std::int64_t end) const {
  KindCounts counts(kinds.size());
  for (std::int64_t layer = begin; layer < end; ++layer) ++counts[of_layer[static_cast<std::size_t>(layer)]];
  return counts;
}

std::size_t BlockKinds::most_common() const {
  const KindCounts all = counts(0, static_cast<std::int64_t>(of_layer.size()));
  return static_cast<std::size_t>(std::max_element(all.begin(), all.end()) - all.begin());
}

BlockKinds block_kinds(const Case& c, const ModelConfig& model) {
  const Recipe recipe = find_recipe(c.recipe);
  const std::vector<ConvertedLayers::Roles> converted = convert(c, model, recipe).converted;
  const Recompute recompute = parse_recompute(c.recompute);
  const bool all_convert_alike = std::all_of(converted.begin(), converted.end(),
                                             [&](const auto& roles) { return roles == converted.front(); });
  const bool all_recompute_alike = !recompute.whole_block(0) || recompute.whole_block(model.layers - 1);
  BlockKinds kinds;
  std::vector<std::tuple<bool, std::int64_t, ConvertedLayers::Roles, bool>> known;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const ConvertedLayers::Roles& roles = converted[static_cast<std::size_t>(layer)];
    const std::tuple kind = {model.has_experts(layer), model.window(layer), roles,
                             recompute.whole_block(layer)};
    const auto at = std::find(known.begin(), known.end(), kind);
    kinds.of_layer.push_back(static_cast<std::size_t>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(kind);
    BlockKind& one = kinds.kinds.emplace_back(BlockKind{uniform_model(model, layer), {}, {}});
    if (!all_convert_alike)
      one.keep_bf16 =
          words_to_keep(c.keep_bf16.empty() ? recipe.keep_bf16 : parse_keep_bf16(c.keep_bf16), roles);
    if (!all_recompute_alike) {
      Recompute own = recompute;
      own.blocks = recompute.whole_block(layer) ? kRecomputeBlocks.blocks : 0;
      one.recompute = recompute_text(own);
    }
  }
  if (kinds.kinds.size() == 1) kinds.kinds.front().model = model;
  return kinds;
}

std::pair<Case, ParallelLayout> case_of_kind(Case c, ParallelLayout layout, const BlockKind& kind) {
  if (kind.keep_bf16) c.keep_bf16 = *kind.keep_bf16;
  if (kind.recompute) c.recompute = *kind.recompute;
  if (!kind.model.moe) {
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
