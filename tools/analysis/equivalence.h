// Definition of "equivalent to BF16", and the t tests behind the verdicts on a loss of studies (fork_verdict.h).
//
// A recipe is equivalent if two one-sided t tests (Schuirmann, 1987), each at `level`, put its mean loss
// difference from BF16 inside +-bound. The tests run over independent units, at least kFewestUnits of them:
// trunks for forks. A difference matters from the margin on, by default 0.25% of BF16's loss. The bound is half the
// margin, because a fork ends before training does.
//
// The verdict holds for the trained model at the number of tokens that it has seen (model_age.h).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "results/record/statistics.h"
#include "results/record/study_place.h"

namespace precbench {

/// Minimum number of trunks for a verdict; fewer do not show their spread.
inline constexpr int kFewestUnits = kFewestTrunks;

/// Relative loss difference below which DeepSeek-V3 (arXiv 2412.19437, section 3.3) and later FP8 reports
/// call a curve matched. Default margin.
inline constexpr double kMatchedLoss = 0.0025;

/// Returns the p-value of "the true mean is at least `bound`" (sign +1) or "at most -bound" (sign -1).
/// `units`: one mean difference per unit, at least two. Returns 1 if the values are not finite.
double p_of_beyond(const std::vector<double>& units, double bound, int sign);

/// Returns the larger p-value of both one-sided tests.
double equivalence_p(const std::vector<double>& units, double bound);

/// Returns true if the units are equivalent: enough of them, and both tests succeed at `level`.
bool is_equivalent(const std::vector<double>& units, double bound, double level);

/// Returns the half-width of the confidence interval of the mean of `count` units with this spread, with
/// probability `tail` beyond each end.
double half_width(const MeanAndSpread& units, int count, double tail);

/// Returns true if `count` units with this mean and spread would be equivalent.
bool would_be_equivalent(const MeanAndSpread& units, int count, double bound, double level);

/// Returns true if the confidence interval of the mean of `count` units with this mean and spread would
/// exclude zero, with probability `tail` beyond each end.
bool would_differ(const MeanAndSpread& units, int count, double tail);

/// Returns the hypotheses that are rejected at family-wise error rate `level` (Holm, 1979).
std::vector<bool> holm(const std::vector<double>& p, double level);

/// Returns the smallest number of units above `now` for which `settles` holds; null if 1000 are not enough.
/// `settles` must be false for `now` and monotonic.
template <class Settles>
std::optional<int> fewest_units(const Settles& settles, std::size_t now) {
  constexpr int kMost = 1000;  // an impractical number
  int low = static_cast<int>(now), enough = kMost;
  if (!settles(enough)) return std::nullopt;
  while (enough - low > 1) {
    const int middle = (low + enough) / 2;
    (settles(middle) ? enough : low) = middle;
  }
  return enough;
}

}  // namespace precbench
