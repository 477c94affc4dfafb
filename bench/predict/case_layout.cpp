// Predicts cases with tensor and pipeline ranks. See case_layout.h.
#include "bench/predict/case_layout.h"

#include <utility>

#include "bench/case/plan.h"
#include "kernels/base/errors.h"

namespace precbench {

CaseLayout case_layout(const Plan& plan) { return case_layout(plan.fields, plan.model); }

CaseLayout case_layout(const Case& c, const ModelConfig& model) {
  static const Case defaults;
  CaseLayout found{c, {}};
  ParallelLayout& layout = found.layout;
  layout.tensor = static_cast<int>(c.tensor);
  layout.context = static_cast<int>(c.context);
  layout.pipeline = static_cast<int>(c.pipeline);
  layout.interleave = static_cast<int>(c.virtual_stages);
  layout.data = static_cast<int>(c.gpus / (c.tensor * c.context * c.pipeline));
  // Only on tensor ranks do experts get other rows than the other layers. Otherwise the case's own exchange is
  // predicted.
  if (model.moe && c.tensor > 1) layout.experts = static_cast<int>(c.ep);
  layout.tensor_overlap = c.overlap == "tensor" || c.overlap == "all";
  layout.tensor_fp8 = c.tensor_gather != "bf16";
  layout.context_overlap = c.overlap == "context" || c.overlap == "all";
  layout.sharded_optimizer = c.shard_optimizer == "on";
  found.c.accumulation = c.micro_steps();
  found.c.tensor = defaults.tensor;
  found.c.tensor_gather = defaults.tensor_gather;
  found.c.pipeline = defaults.pipeline;
  found.c.virtual_stages = defaults.virtual_stages;
  found.c.micro_batches = defaults.micro_batches;
  found.c.shard_optimizer = defaults.shard_optimizer;
  found.c.overlap = defaults.overlap;
  found.c.layers = defaults.layers;  // `model` is already cut to them
  return found;
}

std::optional<std::string> layout_failure(const Plan& plan) {
  return layout_failure(plan, has_layout(plan.fields));
}

std::optional<std::string> layout_failure(const Plan& plan, bool only_predicted) {
  if (plan.refusal) return plan.refusal;
  if (auto why = layout_unsupported_reason(plan)) return why;
  const auto [c, layout] = case_layout(plan);
  ModelConfig model = plan.model;
  // Even routing, which predictions take, drops no token. Runs refuse slots for experts with biases, which a dropped
  // token would keep.
  if (only_predicted) model.moe.expert_bias = false;
  try {
    if (auto why = unsupported_reason(traced_plan(c, model, layout))) return why;
    if (layout.divides_expert_rows()) return unsupported_reason(expert_plan(c, model, layout));
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return std::nullopt;
}

LayoutEstimate estimate_layout(const Plan& plan, const CostModel& cost_model) {
  const auto [c, layout] = case_layout(plan);
  return estimate_layout(c, plan.model, layout, {}, cost_model);
}

std::vector<StageMemory> layout_memory(const Plan& plan) {
  const auto [c, layout] = case_layout(plan);
  return layout_memory(c, plan.model, layout, {});
}

std::vector<std::string> axes_of_layout(const Plan& plan, const std::vector<std::vector<int>>& comms,
                                        std::string (*axis_of)(const std::vector<int>&, const Plan&)) {
  return axes_of_layout(case_layout(plan), plan.model, comms, axis_of);
}

std::vector<std::string> axes_of_layout(const CaseLayout& of, const ModelConfig& model,
                                        const std::vector<std::vector<int>>& comms,
                                        std::string (*axis_of)(const std::vector<int>&, const Plan&)) {
  const auto& [c, layout] = of;
  const Plan traced = traced_plan(c, model, layout);
  std::vector<std::string> axes;
  const bool has_own_names = lacking(layout, traced).tensor == 1;
  bool tensor_seen = false;
  for (std::vector<int> ranks : comms) {
    if (has_own_names) {
      axes.push_back(axis_of(ranks, traced));
      continue;
    }
    // With tensor ranks by rule, only the tensor group and, after it, the expert group have consecutive ranks. All other
    // groups have one rank of each tensor group.
    if (ranks[1] - ranks[0] == 1) {
      axes.emplace_back(tensor_seen ? "experts" : "tensor");
      tensor_seen = true;
      continue;
    }
    for (int& rank : ranks) rank /= layout.tensor;
    axes.push_back(axis_of(ranks, traced));
  }
  return axes;
}

}  // namespace precbench
