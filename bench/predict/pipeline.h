// Pipeline schedules as events over stages: 1F1B, and interleaved 1F1B where every stage has several groups of
// layers. Predictions only; no run of this program has pipeline stages.
#pragma once

#include <cstdint>
#include <vector>

namespace precbench {

/// Seconds of one micro-batch in one group of layers of a stage.
struct ChunkSeconds {
  double forward = 0, backward = 0;
};

struct PipelineTimes {
  /// By stage and group: chunks[s][g] holds the layers of group g on stage s. All stages have as many groups.
  std::vector<std::vector<ChunkSeconds>> chunks;
  double transfer = 0;  ///< seconds from a stage to the next, forward or backward
};

/// Returns the seconds from the first forward pass to the last backward pass of `micro_batches`. Interleaved
/// schedules need a multiple of the number of stages; a rest counts as a full group.
double pipeline_seconds(const PipelineTimes& times, std::int64_t micro_batches);

/// Returns the seconds of the busiest stage without waiting: what is more is the bubble.
double busiest_stage_seconds(const PipelineTimes& times, std::int64_t micro_batches);

/// Returns how many micro-batches' activations stage `stage` holds at once, in units of all its layers.
double micro_batches_in_flight(int stages, int interleave, int stage, std::int64_t micro_batches);

/// Returns the layers of each group, by stage and group, first stage first. Where the layers do not divide and two more
/// would, the embedding and the head count as one each, as in Megatron.
std::vector<std::vector<std::int64_t>> layers_by_group(std::int64_t layers, int stages, int interleave);

}  // namespace precbench
