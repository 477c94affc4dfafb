// Step time from which a speed is computed, and reasons to doubt that speed.
//
// The median step ignores rare events: a hiccup of the host is not a property of a recipe. Under repeated
// stalls, e.g. from a CPU quota, most steps run at full speed and the others wait, so that the median
// overstates the speed. If the median and the mean differ by more than kFarApart, even without the sample
// furthest from the median, speeds are computed from the mean.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/record/record.h"

namespace precbench {

/// Distance of the mean from the median step, as a fraction of the median, beyond which the median is not
/// typical.
inline constexpr double kFarApart = 0.1;
/// Relative noise (statistics.h) beyond which a speed is uncertain: ten times the sampling target.
inline constexpr double kMuchNoise = 0.05;
/// Metrics::speed_from of speeds computed from the mean step.
inline constexpr const char* kFromMean = "mean";

/// Returns true if the mean and the median step are far apart, also without any single sample. False for
/// fewer than kFewestSamples.
bool mean_is_far_from_median(const Timing& timing);

/// Returns the step time in ms for new metrics: median_ms, or mean_step_ms() if the two are far apart. Null
/// without samples.
std::optional<double> step_ms_for_speed(const Timing& timing);

/// Returns the step time in ms of the record's metrics according to metrics.speed_from; null if there is
/// none.
std::optional<double> step_ms_of_speed(const Record& record);

/// Returns the number of CPUs available to a CPU case's threads: their number, limited by the affinity mask
/// and the quota. Null for a GPU case and if unknown.
std::optional<double> cpus_for_threads(const Environment& env);

/// Returns the reasons to doubt the record's speed, a line each, whatever rule ended sampling; empty for a
/// record without a speed.
std::vector<std::string> speed_doubts(const Record& record);

/// Returns the record's warnings and, after them, the doubts that it lacks: records of earlier versions carry none.
std::vector<std::string> warnings_and_doubts(const Record& record);

/// Returns a line for each kind of doubt about the speeds of several records, with its number and its first text:
/// "2 of 5 records: step times are noisy: ...".
std::vector<std::string> doubts_of_all(const std::vector<const Record*>& records);

}  // namespace precbench
