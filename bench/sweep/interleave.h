// Interleaved measurement: the recipes of one setting run A B C C B A, each case in two processes, and every
// case still gets one record. Whatever drifts steadily while the sweep runs (heat, clocks, neighbours) adds
// the same to both runs' mean for every recipe and leaves their ratios alone.
//
// It is a property of how a sweep measures and not of a case: ids, losses and what is skipped as finished are
// the same with and without it.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/case/plan.h"
#include "results/record.h"

namespace precbench {

/// Indices of cases that differ in nothing but the recipe and its flow, in the grid's order.
std::vector<std::vector<std::size_t>> recipe_groups(const std::vector<Plan>& grid);

/// Whether two runs were made by the same program on the same machine, so that they may be pooled.
bool same_environment(const Record& first, const Record& second);

/// One record of the two finished runs of a case. The samples are those of both, one run after the other;
/// the median is the mean of the runs' medians, so that each run counts the same however many samples it
/// took; the interquartile range is that of all samples and so contains what lies between the runs.
/// timing.runs says how it was measured and timing.between_runs how far the medians lie apart. Speeds follow
/// the new median. Losses, breakdown and measured ceilings are the first run's.
Record pool_runs(const Record& first, const Record& second);

}  // namespace precbench
