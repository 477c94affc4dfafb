// The definition of "equivalent to BF16", and the t tests behind every verdict on a loss. Forks (fork_verdict.h) and runs
// from scratch (convergence.h) share it.
//
// A recipe is equivalent if two one-sided t tests (Schuirmann, 1987), each at `level`, put the mean difference of its loss
// from BF16's inside +-bound. The tests run over independent units, at least kFewestUnits of them: trunks for forks, seeds
// for runs from scratch. A difference matters from the margin on, 0.25% of BF16's loss unless a study says otherwise. The
// bound is the margin for a run that is judged at its end, and half of it for a fork, which ends before training does.
//
// The statement is about the model that was trained, at the number of tokens that it had seen (model_age.h).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "results/statistics.h"
#include "results/study.h"

namespace precbench {

/// Fewest trunks or seeds that a verdict takes: fewer show too little of their spread.
inline constexpr int kFewestUnits = kFewestTrunks;

/// Relative difference of the loss below which DeepSeek-V3 (arXiv 2412.19437, section 3.3) and later FP8 reports call a
/// curve matched. The default margin.
inline constexpr double kMatchedLoss = 0.0025;

/// Returns the p-value of "the true mean is at least `bound`" for sign +1, or "at most -bound" for sign -1. `units`: one mean
/// difference a unit, two at least. 1 if they are not finite.
double p_of_beyond(const std::vector<double>& units, double bound, int sign);

/// Returns the p-value of both one-sided tests together, the larger of the two: at most `level` is equivalent.
double equivalence_p(const std::vector<double>& units, double bound);

/// Returns half the width of the interval of the mean of `count` units that scatter as `units` do, with a chance of `tail`
/// beyond either end.
double half_width(const MeanAndSpread& units, int count, double tail);

/// Returns whether `count` units with this mean and spread would be equivalent.
bool would_be_equivalent(const MeanAndSpread& units, int count, double bound, double level);

/// Returns which of several hypotheses are rejected at `level` for all together (Holm, 1979).
std::vector<bool> holm(const std::vector<double>& p, double level);

/// Returns the fewest units above `now` for which `settles` holds, which must not hold for `now` and gain with the number;
/// null if 1000 do not do.
template <class Settles>
std::optional<int> fewest_units(const Settles& settles, std::size_t now) {
  constexpr int kMost = 1000;  // nobody would run more
  int low = static_cast<int>(now), enough = kMost;
  if (!settles(enough)) return std::nullopt;
  while (enough - low > 1) {
    const int middle = (low + enough) / 2;
    (settles(middle) ? enough : low) = middle;
  }
  return enough;
}

}  // namespace precbench
