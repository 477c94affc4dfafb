// Step times foretold from what the dry run counts and from rates measured on other steps, to be set beside the
// measured ones: how far a reader may trust such an estimate for a case that nobody has run.
#pragma once

#include <optional>
#include <vector>

#include "tools/analysis/analysis.h"

namespace precbench {

/// The step of a case on one GPU, in ms: FLOPs (bytes, for an op without FLOPs) of each of its ops at the rate that the
/// op reached in `others`, steps of other shapes, and between two ops the gap that `others` have there. Null where none
/// of them has one of the ops.
std::optional<double> predicted_on_one_gpu(const Record& record, const std::vector<const Record*>& others);

struct ScaledStep {
  double ms = 0;
  double communication_ms = 0;  ///< of all collectives, with nothing beside them
};
/// The step of a case on several GPUs, whose ranks share their parameters in groups of `shards`, at least 1, from the same case's
/// on one GPU: the optimizer is shared by a group, and collectives run beside the rest, which they slow down by
/// kHiddenCost of their own time. Bytes sent are the dry run's, bandwidths measured. Null where either is missing.
std::optional<ScaledStep> predicted_on_several_gpus(const Record& record, const Record& single,
                                                    double shards);

/// What a second of communication costs the compute that runs beside it, in seconds: the collectives' kernels take
/// multiprocessors and memory bandwidth. Fitted to a sweep of the cases of results/h200x4 before the one that is there.
inline constexpr double kHiddenCost = 0.45;

}  // namespace precbench
