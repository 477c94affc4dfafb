// Held-out loss of long runs along training, and its difference from BF16's of the same seed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "results/record/statistics.h"
#include "tools/analysis/recipe_losses.h"

namespace precbench {

struct HeldOutPoint {
  std::int64_t step = 0;                     ///< steps done
  double mean = 0;                           ///< mean over the seeds, nats
  std::optional<MeanWithInterval> interval;  ///< 95%, over the seeds; null below two
};

/// Returns the held-out loss at each step at which every seed of the recipe was evaluated.
std::vector<HeldOutPoint> held_out_curve(const RecipeLosses& recipe);

/// Returns the recipe's held-out loss minus BF16's of equal seed and step. Seeds without a
/// partner are left out.
std::vector<HeldOutPoint> held_out_difference(const RecipeLosses& recipe, const RecipeLosses& bf16);

}  // namespace precbench
