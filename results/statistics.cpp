// Robust statistics of samples and series.
#include "results/statistics.h"

#include <algorithm>
#include <cmath>

namespace precbench {

double quantile(const std::vector<double>& sorted, double p) {
  const double position = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::optional<SampleStatistics> sample_statistics(std::vector<double> samples) {
  if (samples.empty()) return std::nullopt;
  std::sort(samples.begin(), samples.end());
  return SampleStatistics{samples.front(), quantile(samples, 0.25), quantile(samples, 0.5),
                          quantile(samples, 0.75)};
}

std::vector<std::int64_t> outliers(const std::vector<double>& samples) {
  std::vector<std::int64_t> found;
  const auto statistics = sample_statistics(samples);
  if (!statistics) return found;
  const double low = statistics->q1 - 3 * statistics->iqr();
  const double high = statistics->q3 + 3 * statistics->iqr();
  for (std::size_t i = 0; i < samples.size(); ++i)
    if (samples[i] < low || samples[i] > high) found.push_back(static_cast<std::int64_t>(i));
  return found;
}

std::optional<double> trailing_mean(const std::vector<double>& series) {
  constexpr std::size_t kFewest = 5;
  if (series.size() < kFewest) return std::nullopt;
  const std::size_t count = std::max(kFewest, series.size() / 10);
  double sum = 0;
  for (std::size_t i = series.size() - count; i < series.size(); ++i) sum += series[i];
  if (!std::isfinite(sum)) return std::nullopt;
  return sum / static_cast<double>(count);
}

}  // namespace precbench
