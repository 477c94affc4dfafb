// Step times predicted from the dry run's counts and from rates measured on other steps. Shown next to
// measured step times, they tell how reliable such a prediction is for a case that nobody has run.
#pragma once

#include <optional>
#include <vector>

#include "tools/analysis/analysis.h"

namespace precbench {

/// Returns the predicted step time on one GPU, in ms. Each op takes its FLOPs (bytes, if it has no FLOPs) at
/// the rate that the op reached in `others`, steps of other shapes. Each op call adds the mean idle gap of
/// `others`. Null if none of them has one of the ops.
std::optional<double> predicted_on_one_gpu(const Record& record, const std::vector<const Record*>& others);

struct ScaledStep {
  double ms = 0;
  double communication_ms = 0;  ///< sum of all collectives, each running alone
};
/// Predicts a step on several GPUs, whose ranks share parameters in groups of `shards` (at least 1), from the
/// same case on one GPU. Each rank of a group runs 1/shards of the optimizer; collectives overlap with
/// compute and slow it down by kHiddenCost of their own time. Bytes are the dry run's, bandwidths are
/// measured. Null if either is missing.
std::optional<ScaledStep> predicted_on_several_gpus(const Record& record, const Record& single,
                                                    double shards);

/// Slowdown of overlapped compute per second of communication, in seconds: the collectives' kernels occupy
/// SMs and memory bandwidth. Fitted to an earlier sweep of the cases in results/h200x4.
inline constexpr double kHiddenCost = 0.45;

}  // namespace precbench
