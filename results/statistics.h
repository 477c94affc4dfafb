// Robust statistics of samples and series.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace precbench {

struct SampleStatistics {
  double min = 0, q1 = 0, median = 0, q3 = 0;
  double iqr() const { return q3 - q1; }
};

/// The p-quantile (0 <= p <= 1), interpolated linearly between order statistics (type 7 of Hyndman and Fan,
/// 1996: what NumPy and R do). `sorted` must be ascending and not empty.
double quantile(const std::vector<double>& sorted, double p);

/// Null for no samples. Samples must be finite.
std::optional<SampleStatistics> sample_statistics(std::vector<double> samples);

/// Indices of samples beyond Tukey's outer fences: more than 3 IQR outside [q1, q3].
std::vector<std::int64_t> outliers(const std::vector<double>& samples);

/// Mean of the last tenth of a series, of at least 5 entries: a final loss that one lucky batch does not
/// decide. Null for a series shorter than 5 or with a non-finite value in that window.
std::optional<double> trailing_mean(const std::vector<double>& series);

}  // namespace precbench
