// Speed-up to equal loss: what is left of a recipe's speed-up after the additional tokens that make up for its
// loss gap, and the gap at which nothing is left.
//
// A gap costs a factor f of tokens (token_factor() in token_cost.h), so a recipe that is u times as fast reaches
// BF16's loss u / f times as fast. It pays while u > f, i.e. while the gap is below S (1 - u^-beta) / beta, the
// break-even gap.
//
// Intervals combine the 95% intervals of the gap (from the trunks of a study), of the slope (from the reader's
// runs; a law counts as exact) and of the speed-up (of a prediction; a measurement counts as exact): the result
// spans all values within them. Each of k intervals misses the truth with at most 5% probability, so the result
// contains it with at least 100% - k x 5%, whatever their dependence. With one or two intervals that is 90%.
#pragma once

#include <cstdint>

#include "results/record/statistics.h"

namespace precbench {

/// Returns an exactly known value as an interval.
MeanWithInterval exactly(double value);

/// Returns u / token_factor(gap, S) with its interval; 0 where no number of tokens makes up for the gap. `slope.low` and `speedup.low` must be above 0.
MeanWithInterval equal_loss_speedup(const MeanWithInterval& speedup, const MeanWithInterval& gap,
                                    const MeanWithInterval& slope);

/// Returns break_even_gap(S, speedup) in nats with its interval. Negative for a recipe slower than BF16.
MeanWithInterval break_even_interval(const MeanWithInterval& speedup, const MeanWithInterval& slope);

/// Comparison of a gap's interval with the break-even gap's.
enum class Pays : std::uint8_t { yes, no, open };
/// Returns yes if the equal-loss speed-up's whole interval is above 1, no if all of it is below, else open.
Pays pays(const MeanWithInterval& equal_loss);

}  // namespace precbench
