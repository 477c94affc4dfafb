// Trace, step time and memory of one rank of a layout, from dry runs of its share of the work.
#pragma once

#include <cstdint>

#include "bench/predict/cost_model.h"
#include "bench/predict/parallel_trace.h"

namespace precbench {

/// Bytes of one rank at their peak. Buffers are those of collectives, of GEMMs, and quantized copies.
struct RankMemory {
  std::int64_t activations = 0, states = 0, buffers = 0;
  std::int64_t weights = 0, gradients = 0;  ///< of states

  std::int64_t total() const { return activations + states + buffers; }
};

struct RankEstimate {
  Trace trace;
  StepEstimate step;
  TimelineRates rates;
  RankMemory memory;
};

/// Return the memory and the estimate of a rank with all of the model's blocks, which recompute as the case says, all
/// alike. Arguments and errors as in estimate_layout().
RankMemory rank_memory(const Case& c, const ModelConfig& model, const ParallelLayout& layout);
RankEstimate estimate_rank(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                           const RecomputeShare& recompute, const CostModel& cost_model);

}  // namespace precbench
