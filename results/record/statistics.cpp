// Robust statistics of samples and series.
#include "results/record/statistics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace precbench {
namespace {

// std::lgamma stores the sign in a global variable, so it is not thread-safe.
double log_gamma(double x) {
  int sign = 0;
  return lgamma_r(x, &sign);
}

constexpr std::size_t kFewestTrailing = 5;

/// Returns the regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) with
/// the modified Lentz method. The fraction converges fast for x < (a + 1) / (a + b + 2); I_x(a, b) = 1 -
/// I_{1-x}(b, a) covers the rest.
double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const bool mirrored = x > (a + 1) / (a + b + 2);
  if (mirrored) std::swap(a, b), x = 1 - x;
  constexpr double kTiny = 1e-300, kPrecision = 1e-15;
  constexpr int kMostTerms = 10000;
  double c = 1, d = 1 / std::max(1 - (a + b) * x / (a + 1), kTiny), fraction = d;
  for (int m = 1; m < kMostTerms; ++m) {
    double change = 1;
    for (const double term : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      const auto away_from_zero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
      d = 1 / away_from_zero(1 + term * d);
      c = away_from_zero(1 + term / c);
      change = c * d;
      fraction *= change;
    }
    if (std::abs(change - 1) < kPrecision) break;
  }
  const double log_front =
      log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * std::log(x) + b * std::log1p(-x);
  const double lower = std::exp(log_front) * fraction / a;
  return mirrored ? 1 - lower : lower;
}

}  // namespace

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

double quantile(const std::vector<double>& sorted, double p) {
  const double position = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double relative_noise(const SampleStatistics& statistics) {
  return statistics.iqr() / 1.349 / statistics.median;
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

std::size_t trailing_window(std::size_t length) { return std::max(kFewestTrailing, length / 10); }

std::optional<double> trailing_mean(std::span<const double> series) {
  if (series.size() < kFewestTrailing) return std::nullopt;
  const std::size_t count = trailing_window(series.size());
  double sum = 0;
  for (std::size_t i = series.size() - count; i < series.size(); ++i) sum += series[i];
  if (!std::isfinite(sum)) return std::nullopt;
  return sum / static_cast<double>(count);
}

std::optional<std::pair<double, double>> trailing_means_at_equal_steps(std::span<const double> a,
                                                                       std::span<const double> b) {
  const std::size_t steps = std::min(a.size(), b.size());
  const auto x = trailing_mean(a.first(steps));
  const auto y = trailing_mean(b.first(steps));
  return x && y ? std::optional(std::pair(*x, *y)) : std::nullopt;
}

MeanAndSpread mean_and_spread(const std::vector<double>& values) {
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, n > 1 ? std::sqrt(squares / (n - 1)) : 0};
}

double student_t_cdf(double t, double freedom) {
  const double upper = 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t));
  return t > 0 ? 1 - upper : upper;
}

namespace {

/// Returns the quantile for p of at most 0.5.
double lower_t_quantile(double p, double freedom) {
  double low = -1;
  while (student_t_cdf(low, freedom) > p) low *= 2;
  double high = 0;
  // Bisection until the doubles meet: no start value can fail.
  for (double middle = (low + high) / 2; middle > low && middle < high; middle = (low + high) / 2)
    (student_t_cdf(middle, freedom) > p ? high : low) = middle;
  return (low + high) / 2;
}

}  // namespace

double student_t_quantile(double p, double freedom) {
  if (p > 0.5) return -student_t_quantile(1 - p, freedom);
  if (std::isnan(p) || std::isnan(freedom)) return lower_t_quantile(p, freedom);  // no key of a map
  // An analysis asks for the same few values thousands of times.
  constexpr std::size_t kMost = 256;
  thread_local std::map<std::pair<double, double>, double> known;
  if (const auto found = known.find({p, freedom}); found != known.end()) return found->second;
  if (known.size() == kMost) known.clear();
  return known[{p, freedom}] = lower_t_quantile(p, freedom);
}

std::optional<MeanWithInterval> mean_with_interval(const std::vector<double>& values, double level) {
  if (values.size() < 2) return std::nullopt;
  const MeanAndSpread m = mean_and_spread(values);
  const auto n = static_cast<double>(values.size());
  const double half = student_t_quantile(1 - level / 2, n - 1) * m.sd / std::sqrt(n);
  return MeanWithInterval{m.mean, m.mean - half, m.mean + half};
}

}  // namespace precbench
