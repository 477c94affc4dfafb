// Step time and memory of a layout of ranks on a machine: data, tensor, context and pipeline parallelism together.
#pragma once

#include <memory>
#include <vector>

#include "bench/predict/cost_model.h"
#include "bench/predict/parallel_trace.h"

namespace precbench {

/// Memory of a rank of one pipeline stage at its peak, in bytes.
struct StageMemory {
  std::int64_t layers = 0;
  double micro_batches = 1;      ///< whose activations the stage holds at once, in units of all its layers
  std::int64_t states = 0;       ///< weights, gradients and optimizer state
  std::int64_t buffers = 0;      ///< of collectives and GEMMs, and quantized copies
  std::int64_t activations = 0;  ///< of all these micro-batches

  std::int64_t peak() const { return states + buffers + activations; }
};

struct LayoutEstimate {
  /// `seconds` and interval are of the whole step; with pipeline stages the parts of `time` are those of the stage that
  /// works longest, and the bubble is the rest.
  StepEstimate step;
  double bubble_seconds = 0;            ///< that the busiest stage waits for others
  std::int64_t peak_bytes = 0;          ///< of the stage that needs most
  std::vector<StageMemory> stages;      ///< first stage first; one without a pipeline
  std::vector<std::vector<int>> comms;  ///< ranks of the groups of StepTime::exposed (Trace::comms)
};

/// Returns the memory of each stage, without predicting a time. Arguments and errors as in estimate_layout().
std::vector<StageMemory> layout_memory(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                                       const RecomputeShare& recompute);

/// Predicts a step. `c` and `model` as for local_plan(). Throws InvalidInput for layouts that do not divide, and for
/// groups that exceed the machine's network.
LayoutEstimate estimate_layout(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                               const RecomputeShare& recompute, const CostModel& cost_model);

/// Predicts many layouts of one model. Remembers what layouts share that differ in virtual stages and micro-batches alone.
class LayoutEstimator {
 public:
  /// Both must outlive the estimator.
  LayoutEstimator(const ModelConfig& model, const CostModel& cost_model);
  ~LayoutEstimator();
  LayoutEstimator(const LayoutEstimator&) = delete;
  LayoutEstimator& operator=(const LayoutEstimator&) = delete;

  /// Return the same as layout_memory() and estimate_layout(), and throw what they do.
  std::vector<StageMemory> memory(const Case& c, const ParallelLayout& layout);
  LayoutEstimate estimate(const Case& c, const ParallelLayout& layout);

 private:
  struct Known;
  const ModelConfig& model_;
  const CostModel& cost_model_;
  std::unique_ptr<Known> known_;
};

/// Cost of a micro-batch on a rank whose data and pipeline ranks are left out: the same in all layouts that differ in these
/// alone. Times have the collectives of tensor, context and expert ranks, and none of data ranks.
struct MicroBatchCost {
  double forward = 0, backward = 0;  ///< seconds of a layer
  /// Waits among these for collectives of tensor and context ranks, which those of data ranks can run beside. Collectives of
  /// experts and of data ranks run one after the other.
  double exposed = 0;
  double quantize = 0;                                   ///< of these seconds, casts
  double embedding_forward = 0, embedding_backward = 0;  ///< seconds
  double head_forward = 0, head_backward = 0;            ///< likewise, with the loss
  double activation_bytes = 0;                           ///< of a layer
  double weight_bytes = 0, gradient_bytes = 0;           ///< of a layer, not sharded
  double optimizer_bytes = 0;  ///< master weights and moments of a layer, not sharded
  double expert_share = 0;     ///< of these states, those of this rank's experts
  /// States outside of layers, likewise; activations that a stage of several layers has beside theirs; and what GEMMs and
  /// quantized copies of such a stage need at least.
  double ends_weight_bytes = 0, ends_gradient_bytes = 0, ends_optimizer_bytes = 0;
  double activation_rest_bytes = 0, buffer_bytes = 0;
};

/// Returns the costs of each layer with the layout's tensor, context and expert ranks. Errors as in estimate_layout().
std::vector<MicroBatchCost> micro_batch_costs(const Case& c, const ModelConfig& model,
                                              const ParallelLayout& layout, const CostModel& cost_model);

}  // namespace precbench
