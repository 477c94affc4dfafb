// Least squares for one exponent at a time. See age_law.h.
#include "tools/analysis/age_law.h"

#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <utility>

namespace precbench {
namespace {

constexpr double kSteepest = 2;       // limit of the search, for either sign
constexpr double kResolution = 1e-6;  // of the exponent
constexpr std::size_t kFewestAges = 3;

using Points = std::vector<std::pair<double, double>>;  // tokens per parameter, gap

/// Returns the best scale for this exponent and the remaining sum of squares.
std::pair<double, double> fit_scale(const Points& points, double exponent) {
  double xy = 0, xx = 0, rest = 0;
  for (const auto& [x, gap] : points) {
    const double power = std::pow(x, exponent);
    xy += power * gap, xx += power * power;
  }
  const double scale = xy / xx;
  for (const auto& [x, gap] : points) rest += std::pow(gap - scale * std::pow(x, exponent), 2);
  return {scale, rest};
}

/// Fits one trunk. A grid search avoids local minima; golden-section search then refines the exponent.
std::optional<AgeLaw::Trunk> fit_trunk(const Points& points) {
  constexpr int kSteps = 80;
  constexpr double kStep = 2 * kSteepest / kSteps;
  const auto rest = [&](double exponent) { return fit_scale(points, exponent).second; };
  int best = 0;
  for (int i = 1; i <= kSteps; ++i)
    if (rest(-kSteepest + kStep * i) < rest(-kSteepest + kStep * best)) best = i;
  if (best == 0 || best == kSteps) return std::nullopt;
  double low = -kSteepest + kStep * (best - 1), high = low + 2 * kStep;
  while (high - low > kResolution) {
    const double third = (high - low) * (1 - 1 / std::numbers::phi);
    if (rest(low + third) < rest(high - third))
      high -= third;
    else
      low += third;
  }
  const double exponent = (low + high) / 2;
  return AgeLaw::Trunk{fit_scale(points, exponent).first, exponent};
}

}  // namespace

MeanWithInterval AgeLaw::exponent() const {
  std::vector<double> values;
  for (const Trunk& trunk : trunks_) values.push_back(trunk.exponent);
  return *mean_with_interval(values);
}

MeanWithInterval AgeLaw::at(double tokens_per_parameter) const {
  std::vector<double> values;
  for (const auto& [scale, exponent] : trunks_)
    values.push_back(scale * std::pow(tokens_per_parameter, exponent));
  return *mean_with_interval(values);
}

std::optional<AgeLaw> fit_age_law(const std::vector<AgedGap>& gaps) {
  std::map<std::int64_t, Points> by_trunk;
  for (const AgedGap& one : gaps) by_trunk[one.trunk].emplace_back(one.tokens_per_parameter, one.gap);
  std::vector<AgeLaw::Trunk> trunks;
  for (const auto& [number, points] : by_trunk) {
    std::set<double> ages;
    for (const auto& point : points) ages.insert(point.first);
    if (ages.size() < kFewestAges || *ages.rbegin() < kSmallestAgeSpan * *ages.begin()) continue;
    const auto trunk = fit_trunk(points);
    if (!trunk) return std::nullopt;
    trunks.push_back(*trunk);
  }
  if (trunks.size() < 2) return std::nullopt;
  return AgeLaw(std::move(trunks));
}

}  // namespace precbench
