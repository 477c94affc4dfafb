// What the host's clock saw of a step beyond the device's: the work between two steps.
#pragma once

#include <optional>

#include "results/record.h"

namespace precbench {

/// Mean of samples_ms; of an interleaved case the mean of its runs' means, as wall_ms is. Null for no sample.
std::optional<double> mean_step_ms(const Timing& timing);

/// timing.wall_ms beyond that, in ms per step. Null where one of the two is. The clocks differ by little: far below 0
/// the record contradicts itself.
std::optional<double> between_steps_ms(const Timing& timing);

}  // namespace precbench
