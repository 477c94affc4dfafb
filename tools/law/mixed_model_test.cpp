// The mixed model against closed forms and known truths.
#include "tools/law/mixed_model.h"

#include <cmath>
#include <random>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("fit_mixed_model: a balanced one-way layout has the variances of the analysis of variance",
          "[law]") {
  // Three groups of two: means 1, 4, 10; within each, values +-0.5 around the mean.
  std::vector<MixedPoint> points;
  const double means[] = {1, 4, 10};
  for (std::size_t group = 0; group < 3; ++group)
    for (const double deviation : {-0.5, 0.5}) points.push_back({{1}, means[group] + deviation, 0, group});
  const MixedFit fit = fit_mixed_model(points, {false, false, false});
  // Mean square within: 6 * 0.25 / 3. Between: 2 * 21 (sample variance of the means).
  const double within = 0.5, between = 42;
  CHECK(fit.within == Approx(std::sqrt(within)).epsilon(0.01));
  CHECK(fit.between == Approx(std::sqrt((between - within) / 2)).epsilon(0.01));
  CHECK(fit.estimate(0).value == Approx(5).epsilon(1e-3));
  CHECK(fit.estimate(0).error == Approx(std::sqrt(between / 6)).epsilon(0.01));
}

TEST_CASE("fit_mixed_model: a free group says nothing about the level, but about slopes", "[law]") {
  std::vector<MixedPoint> points;
  for (const double x : {0.0, 1.0, 2.0}) {
    points.push_back({{1, x}, 3 + 2 * x, 1e-4, 0});
    points.push_back({{1, x}, 3 + 2 * x + 0.1, 1e-4, 1});
    points.push_back({{1, x}, 50 + 2 * x, 1e-4, 2});
  }
  const MixedFit fit = fit_mixed_model(points, {false, false, true});
  CHECK(fit.estimate(0).value == Approx(3.05).margin(0.02));
  CHECK(fit.estimate(1).value == Approx(2).margin(0.02));
}

TEST_CASE("fit_mixed_model: a coefficient without points keeps the error of its prior", "[law]") {
  std::vector<MixedPoint> points;
  for (std::size_t group = 0; group < 4; ++group)
    for (const double e : {-0.1, 0.1})
      points.push_back({{1, 0}, 0.3 * static_cast<double>(group) + e, 0, group});
  CHECK(fit_mixed_model(points, {false, false, false, false}).estimate(1).error == Approx(kUndetermined));
}

TEST_CASE("fit_mixed_model: finds simulated standard deviations", "[law]") {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  double between = 0, within = 0;
  constexpr int kRepeats = 20;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    std::vector<MixedPoint> points;
    for (std::size_t group = 0; group < 12; ++group) {
      const double effect = 0.3 * normal(random);
      for (int i = 0; i < 6; ++i) points.push_back({{1}, effect + 0.1 * normal(random), 0, group});
    }
    const MixedFit fit = fit_mixed_model(points, std::vector<bool>(12, false));
    between += fit.between * fit.between / kRepeats, within += fit.within * fit.within / kRepeats;
  }
  CHECK(std::sqrt(between) == Approx(0.3).epsilon(0.15));
  CHECK(std::sqrt(within) == Approx(0.1).epsilon(0.1));
}
