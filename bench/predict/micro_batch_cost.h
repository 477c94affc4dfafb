// Cost of a micro-batch by layer, which lower bounds of a layout's step and memory come from (layout_bound.h).
#pragma once

#include <vector>

#include "bench/predict/cost_model.h"
#include "bench/predict/parallel_trace.h"

namespace precbench {

/// Cost of a layer in a micro-batch.
struct LayerCost {
  double forward = 0, backward = 0;  ///< seconds
  /// Waits among these for collectives of tensor and context ranks, which those of data ranks can run beside.
  /// Collectives of experts and of data ranks run one after the other.
  double exposed = 0;
  double quantize = 0;  ///< of these seconds, casts
  double activation_bytes = 0;
  double weight_bytes = 0, gradient_bytes = 0;  ///< not sharded
  double optimizer_bytes = 0;                   ///< master weights and moments, not sharded
  double expert_share = 0;                      ///< of these states, those of this rank's experts
  double buffer_bytes = 0;  ///< least for GEMMs and quantized copies of a stage with such layers
};

/// Cost of a micro-batch on a rank whose data and pipeline ranks are left out: the same in all layouts that differ in
/// these alone. Times have the collectives of tensor, context and expert ranks, and none of data ranks.
struct MicroBatchCost {
  std::vector<LayerCost> layers;
  double embedding_forward = 0, embedding_backward = 0;  ///< seconds
  double head_forward = 0, head_backward = 0;            ///< likewise, with the loss
  /// States outside of layers, not sharded, and activations that a stage of several layers has beside theirs.
  double weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, activation_bytes = 0;
};

/// Returns the case that the costs of `c`'s micro-batch are taken from: it has one stage, and no data ranks but those
/// that share experts.
Case micro_batch_case(Case c);

/// Returns the cost with the layout's tensor, context and expert ranks. Errors as in estimate_layout().
MicroBatchCost micro_batch_cost(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                                const CostModel& cost_model);

}  // namespace precbench
