// Tests the equal-loss speed-up and the break-even gap: values, and coverage of their intervals on simulated
// studies and runs whose truth is known.
#include "tools/analysis/equal_loss.h"

#include <cmath>
#include <random>
#include <vector>

#include "kernels/testing/catch.h"
#include "tools/analysis/horizon_slope.h"
#include "tools/analysis/token_cost.h"

using namespace precbench;

namespace {

constexpr double kHorizon = 1e12;
constexpr const ScalingLaw& kLaw = kBesiroglu2024;
constexpr double kParameters = 1e9;

std::mt19937 generator(unsigned seed) { return std::mt19937(seed); }

/// Simulated run at a constant rate after a warm-up of 5%; its loss follows the law, with noise per step.
BaseRun run_of(double tokens, std::mt19937& random, double seed_error = 0, bool decays = false) {
  constexpr int kSteps = 1000;
  std::normal_distribution<double> unit;
  BaseRun run{"run", {}, {}, {}};
  const double offset = seed_error * unit(random);
  for (int i = 1; i <= kSteps; ++i) {
    run.tokens.push_back(tokens * i / kSteps);
    run.loss.push_back(kLaw.loss(kParameters, run.tokens.back()) + offset + 0.02 * unit(random));
    const double progress = static_cast<double>(i) / kSteps;
    run.rate.push_back(3e-4 * (decays ? 1 - progress : std::min(1.0, 20 * progress)));
  }
  return run;
}

/// Interval of a gap from the means of `trunks` trunks.
MeanWithInterval study_of(double gap, int trunks, std::mt19937& random) {
  std::normal_distribution<double> unit;
  std::vector<double> means;
  for (int i = 0; i < trunks; ++i) means.push_back(gap + 0.0004 * unit(random));
  return mean_with_interval(means).value();
}

bool contains(const MeanWithInterval& interval, double truth) {
  return interval.low <= truth && truth <= interval.high;
}

/// Fraction of `count` repetitions in which `covers` holds.
template <class Covers>
double coverage(int count, Covers&& covers) {
  int hits = 0;
  for (int i = 0; i < count; ++i) hits += covers();
  return static_cast<double>(hits) / count;
}

}  // namespace

TEST_CASE("equal_loss_speedup: divides the speed-up by the tokens that the gap costs", "[gap]") {
  const double s = kLaw.slope(kHorizon);
  const MeanWithInterval law = exactly(s), gap{0.00101, 0.0008, 0.0012};
  const MeanWithInterval left = equal_loss_speedup(exactly(1.38), gap, law);
  CHECK(std::fabs(left.mean - 1.38 / token_factor(0.00101, s)) < 1e-12);
  CHECK(std::fabs(left.mean - 1.336) < 1e-3);
  CHECK(std::fabs(left.low - 1.38 / token_factor(0.0012, s)) < 1e-12);
  CHECK(std::fabs(left.high - 1.38 / token_factor(0.0008, s)) < 1e-12);
  CHECK(pays(left) == Pays::yes);
  // At 15T tokens five times that gap turns the speed-up into a slow-down.
  const double late = kLaw.slope(15e12);
  CHECK(std::fabs(equal_loss_speedup(exactly(1.38), exactly(0.00505), exactly(late)).mean - 0.857) < 0.001);
}

TEST_CASE("break_even_interval: a gap of that size leaves no speed-up", "[gap]") {
  const MeanWithInterval slope{0.03, 0.02, 0.05};
  const MeanWithInterval gap = break_even_interval(exactly(1.38), slope);
  CHECK(std::fabs(gap.mean - break_even_gap(0.03, 1.38)) < 1e-12);
  CHECK(std::fabs(gap.low - break_even_gap(0.02, 1.38)) < 1e-12);
  CHECK(std::fabs(gap.high - break_even_gap(0.05, 1.38)) < 1e-12);
  CHECK(std::fabs(equal_loss_speedup(exactly(1.38), exactly(gap.mean), exactly(0.03)).mean - 1) < 1e-12);
  CHECK(pays(equal_loss_speedup(exactly(1.38), exactly(gap.mean), slope)) == Pays::open);
  // A predicted speed-up widens both intervals.
  CHECK(break_even_interval({1.38, 1.30, 1.45}, exactly(0.03)).low < 0.03 * std::log(1.31));
  // A recipe slower than BF16 must gain loss to pay.
  const MeanWithInterval slower = break_even_interval(exactly(0.9), slope);
  CHECK(slower.mean < 0);
  CHECK(slower.low < slower.high);
  CHECK(pays(equal_loss_speedup(exactly(0.9), {0.001, 0.0009, 0.0011}, slope)) == Pays::no);
}

TEST_CASE("equal_loss_speedup: interval from a study and a law covers the truth", "[gap]") {
  auto random = generator(1);
  const double s = kLaw.slope(kHorizon), gap = 0.004, truth = 1.38 / token_factor(gap, s);
  for (const int trunks : {3, 8}) {
    const double share = coverage(2000, [&] {
      return contains(equal_loss_speedup(exactly(1.38), study_of(gap, trunks, random), exactly(s)), truth);
    });
    INFO(trunks << " trunks: " << share);
    CHECK(share > 0.93);
    CHECK(share < 0.97);
  }
}

TEST_CASE("slope_of_runs: interval from runs of different lengths covers the truth", "[gap]") {
  auto random = generator(2);
  const double truth = kLaw.slope(kHorizon);
  const auto share_of = [&](const std::vector<double>& lengths, double seed_error) {
    return coverage(1000, [&] {
      std::vector<BaseRun> runs;
      for (const double tokens : lengths) runs.push_back(run_of(tokens, random, seed_error));
      return contains(slope_of_runs(runs, kHorizon).slope, truth);
    });
  };
  CHECK(share_of({10e9, 40e9}, 0) > 0.90);
  CHECK(share_of({10e9, 20e9, 40e9}, 0) > 0.90);
  // Runs whose end losses also differ by their seeds.
  CHECK(share_of({5e9, 10e9, 20e9, 40e9, 80e9}, 0.005) > 0.90);
}

TEST_CASE("slope_of_runs: interval from the constant-rate part of one run covers the truth", "[gap]") {
  auto random = generator(3);
  const double truth = kLaw.slope(kHorizon);
  double ratio = 0;
  const double share = coverage(1000, [&] {
    const HorizonSlope slope = slope_of_runs({run_of(40e9, random)}, kHorizon);
    ratio += slope.slope.mean / truth / 1000;
    return contains(slope.slope, truth);
  });
  CHECK(share > 0.90);
  CHECK(std::fabs(ratio - 1) < 0.02);
}

TEST_CASE("equal_loss_speedup: interval from a study and own runs covers the truth", "[gap]") {
  auto random = generator(4);
  const double s = kLaw.slope(kHorizon), gap = 0.004, truth = 1.38 / token_factor(gap, s);
  int break_even = 0;
  constexpr int kCount = 1000;
  const double share = coverage(kCount, [&] {
    const HorizonSlope slope = slope_of_runs({run_of(10e9, random), run_of(40e9, random)}, kHorizon);
    break_even += contains(break_even_interval(exactly(1.38), slope.slope), break_even_gap(s, 1.38));
    return contains(equal_loss_speedup(exactly(1.38), study_of(gap, 3, random), slope.slope), truth);
  });
  CHECK(share > 0.90);
  CHECK(break_even > 0.90 * kCount);
}
