// Losses of runs from scratch beside BF16's. Runs are paired by seed, with the same initial weights and data.
//
// They give no verdict: two BF16 seeds end further apart than a recipe and BF16. Studies judge (fork_verdict.h).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "results/record/statistics.h"
#include "tools/analysis/analysis.h"

namespace precbench {

/// Losses of one recipe of a group, or of BF16 itself. Final loss: the mean of the trailing window (trailing_mean).
struct RecipeLosses {
  CaseFields fields;   ///< fields of the group's first row of this recipe, without the seed
  RecordRefs members;  ///< runs with a loss curve, all seeds
  bool is_bf16 = false;
  std::size_t baseline = 0;  ///< index of the BF16 entry compared with; its own index if there is none

  std::size_t steps = 0;                           ///< number of steps compared; 0 without a sound curve
  int seeds = 0;                                   ///< number of curves behind final_loss; of pairs, if compared
  int diverged = 0;                                ///< number of runs whose loss left the finite numbers
  std::optional<double> final_loss;                ///< mean over the seeds, nats
  std::optional<MeanWithInterval> final_interval;  ///< 95%; null below 2 seeds
  std::optional<double> gap;                       ///< final loss minus BF16's of the same seed, mean over the pairs, nats
  std::optional<MeanWithInterval> gap_interval;    ///< 95%; null below 2 pairs
  std::optional<double> excess_loss;               ///< final_loss minus the known entropy of the data source, nats
};

/// Returns every recipe of a group, BF16 first, the others in row order. Leaves out runs that failed for reasons other
/// than a diverging loss. Empty if no run has enough steps.
std::vector<RecipeLosses> recipe_losses(const Group& group);

/// Returns the exponential moving average with weight 0.9 on the past and bias correction, so that the first
/// value is the first loss.
std::vector<double> ema(std::span<const double> loss);

}  // namespace precbench
