// Robust statistics of samples and series.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace precbench {

struct SampleStatistics {
  double min = 0, q1 = 0, median = 0, q3 = 0;
  double iqr() const { return q3 - q1; }
};

/// Nothing for NaN and infinity.
std::optional<double> finite(double value);

/// The p-quantile (0 <= p <= 1), interpolated linearly between order statistics (type 7 of Hyndman and Fan,
/// 1996: what NumPy and R do). `sorted` must be ascending and not empty.
double quantile(const std::vector<double>& sorted, double p);

/// IQR / 1.349, which is a normal's standard deviation, over the median.
double relative_noise(const SampleStatistics& statistics);
/// Below it, sampling may end (bench/measure/sampler.h), and readers call a timing settled.
inline constexpr double kTargetNoise = 0.005;
/// Fewer samples make no quartile that means anything.
inline constexpr std::size_t kFewestSamples = 5;

/// Null for no samples. Samples must be finite.
std::optional<SampleStatistics> sample_statistics(std::vector<double> samples);

/// Indices of samples beyond Tukey's outer fences: more than 3 IQR outside [q1, q3].
std::vector<std::int64_t> outliers(const std::vector<double>& samples);

/// Mean of the last tenth of a series, of at least 5 entries: a final loss that one lucky batch does not
/// decide. Null for a series shorter than 5 or with a non-finite value in that window.
std::optional<double> trailing_mean(const std::vector<double>& series);
/// How many entries that mean takes of a series of `length`.
std::size_t trailing_window(std::size_t length);
/// The trailing means of two runs after as many steps as both have done: a run that went on longer has learnt
/// more, which says nothing about what else tells the two apart. Null where either has none.
std::optional<std::pair<double, double>> trailing_means_at_equal_steps(const std::vector<double>& a,
                                                                       const std::vector<double>& b);

struct MeanAndSpread {
  double mean = 0, sd = 0;  ///< sample standard deviation (n - 1); 0 for a single value
};
/// `values` must not be empty.
MeanAndSpread mean_and_spread(const std::vector<double>& values);

/// With a two-sided interval of the mean by Student's t.
struct MeanWithInterval {
  double mean = 0, low = 0, high = 0;
};
/// At confidence 1 - level; null for fewer than two values.
std::optional<MeanWithInterval> mean_with_interval(const std::vector<double>& values, double level = 0.05);

/// Student's t distribution with `freedom` >= 1 degrees of freedom: the chance of a value below t, and the
/// value below which it is with chance p, 0 < p < 1. Relative accuracy about 1e-9.
double student_t_cdf(double t, double freedom);
double student_t_quantile(double p, double freedom);

}  // namespace precbench
