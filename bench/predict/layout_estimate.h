// Step time and memory of a layout of ranks on a machine: data, tensor, context and pipeline parallelism together.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/predict/cost_model.h"
#include "bench/predict/parallel_trace.h"
#include "bench/predict/stage_memory.h"
#include "bench/predict/stage_times.h"

namespace precbench {

struct LayoutEstimate {
  /// `seconds` and interval are of the whole step; with pipeline stages the parts of `time` are those of the stage that
  /// works longest, and the bubble is the rest.
  StepEstimate step;
  double bubble_seconds = 0;            ///< that the busiest stage waits for others
  std::int64_t peak_bytes = 0;          ///< of the stage that needs most
  std::vector<StageMemory> stages;      ///< first stage first; one without a pipeline
  std::vector<std::vector<int>> comms;  ///< ranks of the groups of StepTime::exposed (Trace::comms)
};

/// Predicts a step. `c` and `model` as for local_plan(). Throws InvalidInput for layouts that do not divide, and for
/// groups that exceed the machine's network.
LayoutEstimate estimate_layout(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                               const RecomputeShare& recompute, const CostModel& cost_model);

/// Predicts many layouts of one model whose cases have the same kinds of blocks (block_kinds()). Remembers what layouts
/// share that differ in virtual stages and micro-batches alone.
class LayoutEstimator {
 public:
  /// `c`: as in block_kinds(). Model and cost model must outlive the estimator.
  LayoutEstimator(const Case& c, const ModelConfig& model, const CostModel& cost_model)
      : model_(model), cost_model_(cost_model), kinds_(block_kinds(c, model)), memory_(c, model) {}

  /// Return the same as layout_memory() and estimate_layout(), and throw what they do.
  std::vector<StageMemory> memory(const Case& c, const ParallelLayout& layout,
                                  const RecomputeShare& recompute = {}) {
    return memory_.stages(c, layout, recompute);
  }
  LayoutEstimate estimate(const Case& c, const ParallelLayout& layout, const RecomputeShare& recompute = {});

 private:
  const KindTimes& times_of(const Case& c, const ParallelLayout& layout, const RecomputeShare& recompute);

  const ModelConfig& model_;
  const CostModel& cost_model_;
  const BlockKinds kinds_;
  LayoutMemory memory_;
  std::map<std::string, KindTimes> times_;  // by stage_key() and RecomputeShare
};

}  // namespace precbench
