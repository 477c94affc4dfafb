// Held-out loss of long runs: of text that training did not see, along a run, and beside BF16's of the same seed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "results/statistics.h"
#include "tools/analysis/convergence.h"

namespace precbench {

struct HeldOutPoint {
  std::int64_t step = 0;                     ///< steps done
  double mean = 0;                           ///< over the seeds, nats
  std::optional<MeanWithInterval> interval;  ///< 95%, over the seeds; from two on
};

/// The held-out loss after each number of steps at which every seed of the recipe has one.
std::vector<HeldOutPoint> held_out_curve(const RecipeConvergence& recipe);

/// The same minus BF16's of the same seed and step: seeds without a partner are left out.
std::vector<HeldOutPoint> held_out_difference(const RecipeConvergence& recipe, const RecipeConvergence& bf16);

}  // namespace precbench
