// Lower bounds of a layout's step time and memory, from the cost of a micro-batch, without a trace of the layout.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/case/plan.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/micro_batch_cost.h"

namespace precbench {

/// Shares by which bounds may exceed what is predicted. A search takes off as much.
inline constexpr double kTimeTolerance = 0.02, kMemoryTolerance = 0.03;

/// Lower bounds of a step, within kTimeTolerance and kMemoryTolerance.
struct LayoutBound {
  double seconds = 0;
  double bytes = 0;  ///< of the rank that needs most
};

/// Returns the bounds of a case whose micro-batches have this cost. The case's layout has no layout_failure().
LayoutBound layout_bound(const Case& c, const ModelConfig& model, const MicroBatchCost& cost,
                         const CostModel& cost_model);

/// Returns the number of ranks among which a case shards its states.
std::int64_t state_shards(const Case& c);

}  // namespace precbench
