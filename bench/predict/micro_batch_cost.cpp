// Costs of a micro-batch, from the times of a stage. See micro_batch_cost.h.
#include "bench/predict/micro_batch_cost.h"

#include <algorithm>

#include "bench/predict/stage_times.h"

namespace precbench {
namespace {

/// Returns the part of a line that does not grow with the layers.
double rest_of(const PerLayer& line) { return std::max(0.0, line.rest); }

LayerCost layer_cost(const StageTimes& times) {
  LayerCost cost;
  cost.forward = times.forward.one.seconds;
  cost.backward = times.backward.one.seconds;
  for (const StepTime* time : {&times.forward.one, &times.backward.one}) {
    for (std::size_t comm = 0; comm < time->exposed.size(); ++comm)
      if (times.own_lane[comm]) cost.exposed += time->exposed[comm];
    cost.quantize += time->class_seconds[static_cast<std::size_t>(OpClass::quantize)];
  }
  const MemoryPerLayer& memory = times.memory;
  cost.activation_bytes = memory.activations.one;
  cost.weight_bytes = memory.weights.one;
  cost.gradient_bytes = memory.gradients.one;
  cost.optimizer_bytes = memory.states.one - cost.weight_bytes - cost.gradient_bytes;
  cost.buffer_bytes = times.least_buffers;
  return cost;
}

/// Returns the cost of what surrounds the layers.
MicroBatchCost cost_of_ends(const StageTimes& times) {
  MicroBatchCost cost;
  cost.embedding_forward = times.embedding_forward;
  cost.embedding_backward = times.embedding_backward;
  cost.head_forward = std::max(0.0, times.forward.rest.seconds - times.embedding_forward);
  cost.head_backward = std::max(0.0, times.backward.rest.seconds - times.embedding_backward);
  const MemoryPerLayer& memory = times.memory;
  cost.weight_bytes = rest_of(memory.weights);
  cost.gradient_bytes = rest_of(memory.gradients);
  cost.optimizer_bytes = rest_of(memory.states) - cost.weight_bytes - cost.gradient_bytes;
  cost.activation_bytes = rest_of(memory.activations);
  return cost;
}

/// Returns the share of a rank's experts in the states of a layer.
double expert_share_of(const LayerCost& cost, const Case& c, const ModelConfig& kind,
                       const ParallelLayout& layout) {
  if (!kind.moe || cost.weight_bytes <= 0) return 0;
  const std::int64_t ranks = std::max<std::int64_t>(c.ep, layout.experts);
  const auto parameters =
      static_cast<double>(kind.moe.rule.experts / ranks * 3 * kind.width * kind.moe.expert_ffn);
  return std::min(1.0, 2 * parameters / cost.weight_bytes);
}

}  // namespace

Case micro_batch_case(Case c) {
  const Case defaults;
  c.parallel = "ddp";
  c.shard_group = defaults.shard_group;
  c.gather = defaults.gather, c.reshard = defaults.reshard, c.grad_sync = defaults.grad_sync;
  c.shard_optimizer = defaults.shard_optimizer;
  c.pipeline = c.virtual_stages = 1;
  c.accumulation = 1;
  c.micro_batches = defaults.micro_batches;
  c.gpus = std::max(c.tensor * c.context, c.ep);  // experts' ranks are ranks of a stage
  return c;
}

MicroBatchCost micro_batch_cost(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                                const CostModel& cost_model) {
  const BlockKinds kinds = block_kinds(c, model);
  MicroBatchCost cost;
  std::vector<LayerCost> of_kinds;
  for (std::size_t i = 0; i < kinds.kinds.size(); ++i) {
    const BlockKind& kind = kinds.kinds[i];
    const auto [own, ranks] = case_of_kind(c, layout, kind);
    const StageTimes times = stage_times(own, kind.model, ranks, {}, cost_model);
    of_kinds.push_back(layer_cost(times));
    of_kinds.back().expert_share = expert_share_of(of_kinds.back(), c, kind.model, layout);
    if (i == kinds.most_common()) cost = cost_of_ends(times);
  }
  for (const std::size_t kind : kinds.of_layer) cost.layers.push_back(of_kinds[kind]);
  return cost;
}

}  // namespace precbench
