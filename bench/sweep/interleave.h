// Interleaved measurement: the recipes of one setting run A B C C B A, each case in two processes, and every
// case still gets one record. A steady drift during the sweep (heat, clocks, other jobs) adds the same to the
// mean of both runs of every recipe and cancels in their ratios.
//
// It is a property of how a sweep measures, not of a case: ids, losses and the skipping of finished cases are
// the same with and without it.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/case/plan.h"
#include "results/record/record.h"

namespace precbench {

/// Returns groups of indices of cases that differ only in recipe, flow and kept activations, in the grid's order.
std::vector<std::vector<std::size_t>> recipe_groups(const std::vector<Plan>& grid);

/// Returns true if two runs were made by the same program on the same machine, so that they may be pooled.
bool same_environment(const Record& first, const Record& second);

/// Combines the two finished runs of a case into one record. The samples are those of both, one run after the
/// other. The median is the mean of the runs' medians, so that each run counts the same whatever its number
/// of samples; the interquartile range is that of all samples and thus includes the difference between the
/// runs. timing.runs describes the runs, timing.between_runs is the difference of their medians. Speeds
/// follow the new median. Losses, breakdown and measured rates are the first run's.
Record pool_runs(const Record& first, const Record& second);

}  // namespace precbench
