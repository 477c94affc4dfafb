// Tests the definition of equivalence, and that forks and runs from scratch follow it.
#include "tools/analysis/equivalence.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "tools/analysis/convergence.h"
#include "tools/analysis/fork_verdict.h"

using namespace precbench;

TEST_CASE("equivalence_p: returns the larger of both one-sided p-values", "[equivalence]") {
  const std::vector<double> units = {0.1, 0.2, 0.6};
  // Student's t with 2 degrees of freedom: mean 0.3, standard error 0.1527525.
  CHECK(p_of_beyond(units, 0.5, +1) == Approx(student_t_cdf(-0.2 / 0.15275252316519466, 2)));
  CHECK(p_of_beyond(units, 0.5, -1) == Approx(student_t_cdf(-0.8 / 0.15275252316519466, 2)));
  CHECK(equivalence_p(units, 0.5) == p_of_beyond(units, 0.5, +1));
  CHECK(equivalence_p({-0.1, -0.2, -0.6}, 0.5) == equivalence_p(units, 0.5));
  CHECK(equivalence_p({0.25, 0.25, 0.25}, 0.5) == 0);
  CHECK(equivalence_p({0.5, 0.5, 0.5}, 0.5) == 1);
  CHECK(equivalence_p({0.1, NAN, 0.1}, 0.5) == 1);
}

TEST_CASE("would_be_equivalent: at the actual number of units it agrees with the p-value", "[equivalence]") {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(0.2, 0.2);
  int both[2] = {0, 0};
  for (int i = 0; i < 500; ++i) {
    const std::vector<double> units = {normal(random), normal(random), normal(random), normal(random)};
    const bool equivalent = equivalence_p(units, 0.5) <= 0.05;
    CHECK(would_be_equivalent(mean_and_spread(units), 4, 0.5, 0.05) == equivalent);
    ++both[equivalent];
  }
  CHECK((both[0] > 50 && both[1] > 50));
}

TEST_CASE("is_equivalent: needs kFewestUnits units and both tests", "[equivalence]") {
  CHECK(is_equivalent({0.1, 0.1, 0.1}, 0.5, 0.05));
  CHECK_FALSE(is_equivalent({0.1, 0.1}, 0.5, 0.05));
  CHECK_FALSE(is_equivalent({0.1, 0.2, 0.6}, 0.5, 0.05));
}

TEST_CASE("would_differ: agrees with the 95% interval of the mean", "[equivalence]") {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(0.3, 0.2);
  int both[2] = {0, 0};
  for (int i = 0; i < 500; ++i) {
    const std::vector<double> units = {normal(random), normal(random), normal(random)};
    const MeanWithInterval interval = *mean_with_interval(units);
    const bool differs = interval.low > 0 || interval.high < 0;
    CHECK(would_differ(mean_and_spread(units), 3, 0.025) == differs);
    ++both[differs];
  }
  CHECK((both[0] > 50 && both[1] > 50));
}

TEST_CASE("prediction_half_width: t(0.975) times the root of 1 + 1/n", "[equivalence]") {
  CHECK(prediction_half_width(3, 0.025) == Approx(4.302652730 * std::sqrt(4.0 / 3)));
  CHECK(prediction_half_width(8, 0.025) == Approx(2.364624252 * std::sqrt(9.0 / 8)));
}

TEST_CASE("equivalence: forks and runs from scratch agree for the same differences and bound",
          "[equivalence]") {
  constexpr double kLoss = 2, kBound = kLoss * kMatchedLoss;
  constexpr std::size_t kSteps = 200;
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal(0.4 * kBound, 0.5 * kBound);
  int both[2] = {0, 0};
  for (int i = 0; i < 100; ++i) {
    std::vector<std::vector<double>> ours, theirs;
    std::vector<LossCurve> recipe, bf16;
    ForkEvidence forks{"recipe", {{100, {}}}, {}, 0};
    ours.reserve(4), theirs.reserve(4);
    for (int unit = 1; unit <= 4; ++unit) {
      const double difference = normal(random);
      std::vector<double> loss(kSteps, kLoss);
      loss.front() = 5;  // large enough a decrease to be judged
      theirs.emplace_back(loss);
      for (std::size_t step = kSteps / 2; step < kSteps; ++step) loss[step] += difference;
      ours.emplace_back(loss);
      recipe.push_back({std::to_string(unit), ours.back()});
      bf16.push_back({std::to_string(unit), theirs.back()});
      forks.ages.front().by_trunk[unit] = {difference};
    }
    const RecipeConvergence scratch = compare_curves(recipe, bf16, std::nullopt);
    REQUIRE(scratch.margin);
    CHECK(*scratch.margin == Approx(kBound));
    // A fork's bound is half of its margin.
    const ForkVerdict forked =
        judge_forks({forks}, {NoiseFloor{0.0}}, 1, {}, {.margin = 2 * *scratch.margin}).front();
    const bool equivalent = forked.outcome == ForkOutcome::equivalent;
    CHECK((scratch.verdict == ConvergenceVerdict::equivalent) == equivalent);
    ++both[equivalent];
  }
  CHECK((both[0] > 10 && both[1] > 10));
}
