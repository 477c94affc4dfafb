// Robust statistics of samples and series.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace precbench {

struct SampleStatistics {
  double min = 0, q1 = 0, median = 0, q3 = 0;
  double iqr() const { return q3 - q1; }
};

/// Returns the value; nullopt for NaN and infinity.
std::optional<double> finite(double value);

/// Returns the p-quantile (0 <= p <= 1), interpolated linearly between order statistics (type 7 of Hyndman
/// and Fan, 1996, as in NumPy and R). `sorted` must be ascending and not empty.
double quantile(const std::vector<double>& sorted, double p);

/// Returns IQR / 1.349 over the median. For normal samples that is the relative standard deviation.
double relative_noise(const SampleStatistics& statistics);
/// Relative noise below which sampling may end (bench/measure/sampler.h) and readers regard a timing as
/// settled.
inline constexpr double kTargetNoise = 0.005;
/// Minimum number of samples for meaningful quartiles.
inline constexpr std::size_t kFewestSamples = 5;

/// Returns the statistics of finite samples; null without samples.
std::optional<SampleStatistics> sample_statistics(std::vector<double> samples);

/// Returns the indices of samples beyond Tukey's outer fences: more than 3 IQR outside [q1, q3].
std::vector<std::int64_t> outliers(const std::vector<double>& samples);

/// Returns the mean of the last tenth of a series, at least 5 entries, as a final loss that does not depend
/// on one batch. Null for a series shorter than 5 or with a non-finite value in that window.
std::optional<double> trailing_mean(std::span<const double> series);
/// Returns the number of entries in that mean for a series of `length`.
std::size_t trailing_window(std::size_t length);
/// Returns the trailing means of two runs at the number of steps that both have done, because a longer run
/// has learned more. Null if either has none.
std::optional<std::pair<double, double>> trailing_means_at_equal_steps(std::span<const double> a,
                                                                       std::span<const double> b);

struct MeanAndSpread {
  double mean = 0, sd = 0;  ///< sample standard deviation (n - 1); 0 for a single value
};
/// Returns mean and spread of `values`, which must not be empty.
MeanAndSpread mean_and_spread(const std::vector<double>& values);

/// A mean with its two-sided confidence interval by Student's t.
struct MeanWithInterval {
  double mean = 0, low = 0, high = 0;
};
/// Returns the interval at confidence 1 - level; null for fewer than two values.
std::optional<MeanWithInterval> mean_with_interval(const std::vector<double>& values, double level = 0.05);

/// Student's t distribution with `freedom` >= 1 degrees of freedom: the probability of a value below t, and
/// its inverse for 0 < p < 1. Relative accuracy about 1e-9.
double student_t_cdf(double t, double freedom);
double student_t_quantile(double p, double freedom);

}  // namespace precbench
