// Layout of ranks of a case with --tensor, --pipeline, --shard-optimizer or --overlap, and its prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/layout_estimate.h"

namespace precbench {

/// A case as local_plan() and estimate_layout() take it.
struct CaseLayout {
  Case c;  ///< without the layout's flags; its accumulation is the micro-batches of a step
  ParallelLayout layout;
};

/// Returns the layout of a case whose flags fit each other (layout_unsupported_reason). `model`: the case's, cut to its
/// layers.
CaseLayout case_layout(const Plan& plan);
CaseLayout case_layout(const Case& c, const ModelConfig& model);

/// Returns why the layout of a case cannot be predicted: a rule of layouts, or one of a single rank's share of the
/// work. Null if it can. `only_predicted`: no run would follow (has_layout()).
std::optional<std::string> layout_failure(const Plan& plan);
std::optional<std::string> layout_failure(const Plan& plan, bool only_predicted);

/// Predicts the step and memory of a case. `plan` has no layout_failure().
LayoutEstimate estimate_layout(const Plan& plan, const CostModel& cost_model);
/// Returns the memory of each stage alone, for formats that no rates exist for.
std::vector<StageMemory> layout_memory(const Plan& plan);

/// Returns the name of the axis of each group of `comms` (LayoutEstimate::comms): "tensor", "experts" of tensor ranks,
/// or what `axis_of` calls the group in the plan of one traced rank, which has no tensor ranks.
std::vector<std::string> axes_of_layout(const CaseLayout& layout, const ModelConfig& model,
                                        const std::vector<std::vector<int>>& comms,
                                        std::string (*axis_of)(const std::vector<int>&, const Plan&));
std::vector<std::string> axes_of_layout(const Plan& plan, const std::vector<std::vector<int>>& comms,
                                        std::string (*axis_of)(const std::vector<int>&, const Plan&));

}  // namespace precbench
