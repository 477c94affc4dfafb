// Simulated rates of false acceptance, and the power, of samples to a target loss.
#include "tools/import/samples_to_target.h"

#include <cmath>
#include <limits>
#include <random>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/import/import_testing.h"

using namespace precbench;
using namespace precbench::import_testing;

namespace {

/// Standard deviation 1 each, but for the heavy tails of the last.
double shape(int kind, std::mt19937_64& random) {
  static std::normal_distribution<double> normal;
  static std::exponential_distribution<double> exponential;
  static std::student_t_distribution<double> heavy(3);
  static std::uniform_real_distribution<double> uniform(0, 1);
  switch (kind) {
    case 0:
      return normal(random);
    case 1:
      return exponential(random);  // now and then a slow run
    case 2:
      return -exponential(random);
    case 3:
      return std::exp(normal(random)) / 2.16;
    case 4:
      return normal(random) * 0.5 + (uniform(random) < 0.1 ? 3 : 0);  // one run in ten gets stuck
    case 5:
      return std::round(2 * normal(random)) / 2;  // evaluations are rare, so that runs tie
    default:
      return heavy(random);
  }
}
constexpr int kShapes = 7;

/// Returns the share of trials in which an arm whose runs need exp(`shift`) times the reference's samples is accepted.
double accepted_rate(int kind, int reference, int runs, double spread, double spread_of_arm, double shift,
                     int trials) {
  std::mt19937_64 random(static_cast<std::uint64_t>(1000 * kind + 10 * reference + runs));
  int accepted = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> a, b;
    for (int i = 0; i < reference; ++i) a.push_back(1e6 * std::exp(spread * shape(kind, random)));
    for (int i = 0; i < runs; ++i) b.push_back(1e6 * std::exp(shift + spread_of_arm * shape(kind, random)));
    accepted += judge_samples(a, b, 0.05).accepted;
  }
  return static_cast<double>(accepted) / trials;
}

}  // namespace

TEST_CASE("judge_samples: simulated false acceptance is at most 1% for any shape of the runs' distribution",
          "[import][simulation]") {
  constexpr int kTrials = 2500;
  const double error =
      3 * std::sqrt(kFalseAcceptance * (1 - kFalseAcceptance) / kTrials);  // of a simulated rate
  const double bound = std::log1p(0.05);
  for (int kind = 0; kind < kShapes; ++kind)
    for (const auto& [reference, runs] : {std::pair{10, 3}, std::pair{5, 5}, std::pair{20, 10}}) {
      INFO(kind << " " << reference << " " << runs);
      for (const double spread : {0.01, 0.05})
        CHECK(accepted_rate(kind, reference, runs, spread, spread, bound, kTrials) <=
              kFalseAcceptance + error);
    }
}

TEST_CASE(
    "judge_samples: simulated false acceptance is at most 1% if normal runs of the recipe spread otherwise",
    "[import][simulation]") {
  constexpr int kTrials = 2500;
  const double error = 3 * std::sqrt(kFalseAcceptance * (1 - kFalseAcceptance) / kTrials),
               bound = std::log1p(0.05);
  for (const auto& [reference, runs] : {std::pair{10, 3}, std::pair{5, 5}, std::pair{20, 10}})
    for (const auto& [spread, spread_of_arm] : {std::pair{0.01, 0.05}, std::pair{0.05, 0.01}})
      CHECK(accepted_rate(0, reference, runs, spread, spread_of_arm, bound, kTrials) <=
            kFalseAcceptance + error);
}

TEST_CASE("judge_samples: an equal recipe is accepted, and the number of runs that it names is enough",
          "[import][simulation]") {
  CHECK(accepted_rate(0, 10, 10, 0.01, 0.01, 0, 400) > 0.95);
  std::vector<double> a, b;
  for (const double sign : {-1, 1, -1, 1}) {  // a standard deviation of 0.03
    a.push_back(std::exp(0.03 * sign * std::sqrt(0.75)));
    b.push_back(std::exp(0.03 * sign * std::sqrt(0.75)));
  }
  CHECK_FALSE(judge_samples(a, b, 0.05).accepted);
  const auto runs = runs_to_accept(a, b, 0.05);
  REQUIRE(runs);
  CHECK(*runs > 5);
  CHECK(accepted_rate(0, *runs, *runs, 0.03, 0.03, 0, 400) > 0.75);
  CHECK_FALSE(runs_to_accept(a, {1}, 0.05));
}

TEST_CASE("rank_sum_p: exact probabilities of small arms", "[import]") {
  CHECK(rank_sum_p(3, 3, 9) == Approx(1.0 / 20));
  CHECK(rank_sum_p(3, 3, 0) == Approx(1));
  CHECK(rank_sum_p(2, 2, 3) == Approx(2.0 / 6));
  CHECK(rank_sum_p(10, 3, 30) == Approx(1.0 / 286));
  CHECK(rank_sum_p(1, 1, 2) == 0);
  CHECK(rank_sum_p(100, 100, 10000) >= 0);
}

TEST_CASE("judge_samples: one run, runs that do not arrive, and a target out of reach decide nothing",
          "[import]") {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const std::vector<double> reference = {100, 101, 102, 99, 100};
  CHECK(contains(judge_samples(reference, {90}, 0.05).reason, "one run decides nothing"));
  CHECK(
      contains(judge_samples(std::vector<double>(150, 100.0), {90}, 0.05).reason, "one run decides nothing"));
  CHECK(contains(judge_samples(reference, {90, 91, 92, 93, kNever}, 0.05).reason,
                 "4 of 5 runs reach the target"));
  CHECK(contains(judge_samples({100, kNever}, {90, 91}, 0.05).reason,
                 "choose one that all of the reference reach"));
  CHECK(judge_samples(reference, {100, 101, 102, 99, 100}, 0.05).accepted);
  CHECK_FALSE(judge_samples(reference, {106, 107, 108, 106, 107}, 0.05).accepted);
}

TEST_CASE("samples_to_target: the first line at which five losses have the target as their mean",
          "[import]") {
  LossCurve curve;
  for (int i = 1; i <= 20; ++i) curve.steps.push_back(10 * i), curve.loss.push_back(20 - i);
  CHECK(samples_to_target(curve, 10, 4) == 120 * 4);  // 12, 11, 10, 9, 8
  CHECK(std::isinf(samples_to_target(curve, 0.5, 4)));
  curve.loss[8] = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isinf(samples_to_target(curve, 10, 4)));
  const ArmGroup group{"g", 4, {{"bf16", {curve}}, {"mxfp8", {curve}}}, true};
  CHECK(contains(joined(target_sentences(group, group.arms[1], 10, 0.05)), "not accepted"));
}
