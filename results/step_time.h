// Which step time a speed is made from, and what in a timing leaves that speed in doubt.
//
// The median step leaves out what happens to a few steps: a hiccup of the host is no property of a recipe. But where stalls
// come again and again, as under a CPU quota, most steps run at full speed and the others wait: the median is then a speed
// that nobody gets. Where the median and the mean lie further apart than kFarApart, even without the one step that is
// furthest from the median, speeds are made from the mean: tokens over the time that they took.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/record.h"

namespace precbench {

/// Distance between the mean and the median step, as a fraction of the median, beyond which the median is not typical.
inline constexpr double kFarApart = 0.1;
/// Relative noise (statistics.h) beyond which a speed is uncertain, ten times the target that sampling has.
inline constexpr double kMuchNoise = 0.05;
/// Metrics::speed_from of speeds made from the mean step.
inline constexpr const char* kFromMean = "mean";

/// Returns whether the mean and the median step lie far apart, and would without any single sample. False of fewer than
/// kFewestSamples.
bool mean_is_far_from_median(const Timing& timing);

/// Returns the step time in ms that new metrics are to be made from: median_ms, or mean_step_ms() where the two lie far
/// apart. Null without samples.
std::optional<double> step_ms_for_speed(const Timing& timing);

/// Returns the step time in ms that the record's metrics are made from, as metrics.speed_from says. Null where there is none.
std::optional<double> step_ms_of_speed(const Record& record);

/// Returns the CPUs' worth of time that a CPU case's threads could have: their number, or the CPUs of the affinity mask or of
/// the quota where these are fewer. Null of a GPU's, and where it is not known.
std::optional<double> cpus_for_threads(const Environment& env);

/// Returns what leaves the record's speed in doubt, a line each, whatever rule ended sampling; nothing for a record without
/// a speed.
std::vector<std::string> speed_doubts(const Record& record);

}  // namespace precbench
