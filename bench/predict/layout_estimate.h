// Step time and memory of a layout of ranks on a machine: data, tensor, context and pipeline parallelism together.
#pragma once

#include "bench/predict/cost_model.h"
#include "bench/predict/parallel_trace.h"

namespace precbench {

struct LayoutEstimate {
  /// `seconds` and interval are of the whole step; with pipeline stages the parts of `time` are those of the stage that
  /// works longest, and the bubble is the rest.
  StepEstimate step;
  double bubble_seconds = 0;    ///< that the busiest stage waits for others
  std::int64_t peak_bytes = 0;  ///< of the stage that needs most
};

/// Predicts a step. `c` and `model` as for local_plan(). Throws InvalidInput for layouts that do not divide, and for
/// groups that exceed the machine's network.
LayoutEstimate estimate_layout(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                               const RecomputeShare& recompute, const CostModel& cost_model);

}  // namespace precbench
