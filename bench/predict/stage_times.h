// Times of a pipeline stage's micro-batch, extrapolated from traces of short models of each kind of block.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/predict/block_kinds.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/stage_memory.h"

namespace precbench {

/// Linear function of a number of layers, of a time and all its parts.
struct TimePerLayer {
  StepTime one, rest;
};

/// Times of one micro-batch and of what surrounds all of them, as functions of a stage's layers.
struct StageTimes {
  TimePerLayer forward, backward, around;
  double embedding_forward = 0, embedding_backward = 0;
  StepEstimate step;  ///< of the longest model that was traced
  std::vector<std::vector<int>> comms;
  std::vector<bool> own_lane;  ///< of comms: its collectives run beside those of data ranks
  MemoryPerLayer memory;
  double least_buffers = 0;  ///< bytes, of the models that were traced
};

/// Returns the times of a model all of whose blocks are of one kind. Arguments and errors as in estimate_layout().
StageTimes stage_times(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                       const RecomputeShare& recompute, const CostModel& cost_model);

/// Times of the layers of each kind, whose communicators are numbered alike.
struct KindTimes {
  std::vector<StageTimes> kinds;
  std::size_t ends = 0;                 ///< kind whose times of embedding, head and update are used
  std::vector<std::vector<int>> comms;  ///< of all kinds

  const StageTimes& of_ends() const { return kinds[ends]; }
};

KindTimes kind_times(const Case& c, const BlockKinds& kinds, const ParallelLayout& layout,
                     const RecomputeShare& recompute, const CostModel& cost_model);

}  // namespace precbench
