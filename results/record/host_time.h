// Host time of a step beyond the device time: the work between steps.
#pragma once

#include <optional>

#include "results/record/record.h"

namespace precbench {

/// Returns the mean of samples_ms; for an interleaved case the mean of its runs' means, like wall_ms. Null
/// without samples.
std::optional<double> mean_step_ms(const Timing& timing);

/// Returns timing.wall_ms minus mean_step_ms(), in ms per step; null if either is null. May be slightly
/// negative, because the clocks differ; a clearly negative value is a contradiction.
std::optional<double> between_steps_ms(const Timing& timing);

}  // namespace precbench
