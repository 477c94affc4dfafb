// Extrapolates the memory of pipeline stages. See stage_memory.h.
#include "bench/predict/stage_memory.h"

#include <algorithm>
#include <utility>

#include "bench/predict/pipeline.h"

namespace precbench {
namespace {

MemoryPerLayer memory_per_layer(Case c, const ModelConfig& model, const ParallelLayout& layout) {
  constexpr std::int64_t kFew = 3, kMany = 5;  // from three layers on, a layer's buffers are reused
  c.accumulation = std::min(c.accumulation, kTracedMicroSteps);
  const auto at = [&](std::int64_t layers) {
    c.layers = layers;
    return rank_memory(c, deepened(model, kMany), layout);
  };
  const RankMemory few = at(kFew), many = at(kMany);
  return line_through(kFew, few, kMany, many);
}

/// Returns the memory of each pipeline stage. States outside of blocks are those of the embedding, on the first stage,
/// and of the head, on the last one, half each, or both if they share their weights. Every stage has the buffers.
std::vector<StageMemory> memory_of_stages(const std::vector<MemoryPerLayer>& bytes, const BlockKinds& kinds,
                                          const ParallelLayout& layout, std::int64_t micro_batches) {
  const auto groups = kinds_by_group(kinds, layout);
  const std::size_t common = kinds.most_common();
  std::vector<StageMemory> stages;
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    StageMemory memory;
    const KindCounts layers = layers_of_stage(groups[static_cast<std::size_t>(stage)]);
    for (const double own : layers) memory.layers += static_cast<std::int64_t>(own);
    memory.micro_batches = micro_batches_in_flight(layout.pipeline, layout.interleave, stage, micro_batches);
    const bool ends = stage == 0 || stage == layout.pipeline - 1;
    const double own_rest = !ends ? 0 : kinds.kinds[common].model.tied ? 1 : 0.5;
    double states = 0, activations = bytes[common].activations.rest;
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      states += bytes[kind].states.one * layers[kind];
      activations += bytes[kind].activations.one * (layers[kind] * memory.micro_batches);
      if (layers[kind] > 0)
        memory.buffers =
            std::max(memory.buffers, static_cast<std::int64_t>(bytes[kind].buffers.at(layers[kind])));
    }
    memory.states = static_cast<std::int64_t>(states + bytes[common].states.rest * own_rest);
    memory.activations = static_cast<std::int64_t>(activations);
    stages.push_back(memory);
  }
  return stages;
}

}  // namespace

MemoryPerLayer line_through(std::int64_t few, const RankMemory& at_few, std::int64_t many,
                            const RankMemory& at_many) {
  const auto line = [&](std::int64_t RankMemory::*part) {
    const auto low = static_cast<double>(at_few.*part), high = static_cast<double>(at_many.*part);
    const double one = (high - low) / static_cast<double>(many - few);
    return PerLayer{one, low - one * static_cast<double>(few)};
  };
  return {line(&RankMemory::activations), line(&RankMemory::states), line(&RankMemory::buffers),
          line(&RankMemory::weights), line(&RankMemory::gradients)};
}

StageMemory memory_of_whole(const RankMemory& memory, const ModelConfig& model) {
  return {model.layers, 1, memory.states, memory.buffers, memory.activations};
}

std::vector<StageMemory> LayoutMemory::stages(const Case& c, const ParallelLayout& layout,
                                              const RecomputeShare& recompute) {
  std::vector<StageMemory> stages = uniform_stages(c, layout);
  if (!recompute.is_partial()) return stages;
  const std::vector<StageMemory> none = uniform_stages(without_recompute(c), layout);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    stages[stage].activations = recompute.mixed(stages[stage].activations, none[stage].activations);
  return stages;
}

/// Returns the memory of each stage whose blocks recompute as the case says, all alike.
std::vector<StageMemory> LayoutMemory::uniform_stages(const Case& c, const ParallelLayout& layout) {
  if (layout.pipeline == 1) return {memory_of_whole(rank_memory(c, model_, layout), model_)};
  return memory_of_stages(memory_of_kinds(c, layout), kinds_, layout, c.accumulation);
}

const std::vector<MemoryPerLayer>& LayoutMemory::memory_of_kinds(const Case& c,
                                                                 const ParallelLayout& layout) {
  const std::string key = stage_key(c, layout);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  std::vector<MemoryPerLayer> bytes;
  for (const BlockKind& kind : kinds_.kinds) {
    const auto [own, ranks] = case_of_kind(c, layout, kind);
    bytes.push_back(memory_per_layer(own, kind.model, ranks));
  }
  return known_.emplace(key, std::move(bytes)).first->second;
}

std::vector<StageMemory> layout_memory(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                                       const RecomputeShare& recompute) {
  return LayoutMemory(c, model).stages(c, layout, recompute);
}

}  // namespace precbench
