// The verdict on two arms of loss curves: rates of wrong verdicts, power, and what one run per arm is told.
#include "tools/import/loss_verdict.h"

#include <cmath>
#include <random>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/analysis/equivalence.h"
#include "tools/import/import_testing.h"

using namespace precbench;
using namespace precbench::import_testing;

namespace {

/// Returns a run whose final loss is 3 plus `offset`.
LossCurve curve_at(double offset, std::optional<std::int64_t> seed, int lines = 20) {
  LossCurve curve;
  curve.seed = seed;
  for (int i = 1; i <= lines; ++i) {
    curve.steps.push_back(10 * i);
    curve.loss.push_back(3 + offset + 8 * std::exp(-i));
  }
  return curve;
}

/// Returns arms of `runs` seeds; paired ones share the offset of their seed.
std::pair<RunArm, RunArm> arms(std::mt19937_64& random, int runs, double difference, double sd, bool paired) {
  std::normal_distribution<double> normal;
  std::pair<RunArm, RunArm> both{{"bf16", {}}, {"mxfp8", {}}};
  for (int i = 0; i < runs; ++i) {
    const double shared = 0.05 * normal(random);
    const auto seed = paired ? std::optional<std::int64_t>(i) : std::nullopt;
    both.first.runs.push_back(curve_at(paired ? shared : sd * normal(random), seed));
    both.second.runs.push_back(curve_at((paired ? shared : 0) + difference + sd * normal(random), seed));
  }
  return both;
}

constexpr double kMargin = 0.0025;

double rate_of(LossOutcome outcome, int runs, double difference, double sd, bool paired) {
  std::mt19937_64 random(11);
  constexpr int kTrials = 600;
  int found = 0;
  for (int i = 0; i < kTrials; ++i) {
    const auto [reference, arm] = arms(random, runs, difference, sd, paired);
    found += judge_losses(reference, arm, kMargin, 0.001).outcome == outcome;
  }
  return static_cast<double>(found) / kTrials;
}

}  // namespace

TEST_CASE("judge_losses: a recipe at the margin is seldom equivalent and an equal one seldom worse",
          "[import]") {
  // The margin is 0.25% of 3 nats.
  for (const bool paired : {true, false})
    for (const int runs : {3, 6}) {
      INFO(paired << " " << runs);
      CHECK(rate_of(LossOutcome::equivalent, runs, 0.0075, 0.003, paired) <= 0.07);
      CHECK(rate_of(LossOutcome::worse, runs, 0, 0.003, paired) <= 0.045);
      CHECK(rate_of(LossOutcome::better, runs, 0, 0.003, paired) <= 0.045);
    }
}

TEST_CASE("judge_losses: the power that it states is the rate with which equal recipes are equivalent",
          "[import]") {
  for (const int runs : {3, 5, 8}) {
    const double stated = equivalence_power(0.004, runs, 0.0075, kLossLevel);
    CHECK(rate_of(LossOutcome::equivalent, runs, 0, 0.004, true) == Approx(stated).margin(0.04));
  }
  CHECK(equivalence_power(0.001, 1, 0.0075, kLossLevel) == 0);
  CHECK(equivalence_power(1e-9, 3, 0.0075, kLossLevel) == Approx(1).margin(1e-3));
  CHECK(equivalence_power(0.004, 1000, 0.0075, kLossLevel) == Approx(1).margin(1e-3));
}

TEST_CASE("judge_losses: a clearly worse recipe is worse, and a diverged one has diverged", "[import]") {
  CHECK(rate_of(LossOutcome::worse, 4, 0.03, 0.003, true) > 0.95);
  std::mt19937_64 random(3);
  auto [reference, arm] = arms(random, 3, 0, 0.003, true);
  arm.runs.back().diverged = true;
  CHECK(judge_losses(reference, arm, kMargin, 0.001).outcome == LossOutcome::diverged);
  reference.runs.back().diverged = true;
  CHECK(contains(judge_losses(reference, arm, kMargin, 0.001).problem, "a run of bf16 diverged"));
}

TEST_CASE("judge_losses: one run per arm decides nothing, and it says how many would", "[import]") {
  const RunArm reference{"bf16", {curve_at(0, std::nullopt)}}, arm{"mxfp8", {curve_at(0.5, std::nullopt)}};
  const LossVerdict verdict = judge_losses(reference, arm, kMargin, 0.001);
  CHECK(verdict.outcome == LossOutcome::undecided);
  CHECK_FALSE(verdict.interval);
  REQUIRE(verdict.runs_for_verdict);
  const double sd = std::sqrt(2.0) * 0.001 * 3, margin = kMargin * 3;
  CHECK(equivalence_power(sd, *verdict.runs_for_verdict, margin, kLossLevel) >= kEnoughPower);
  CHECK(equivalence_power(sd, *verdict.runs_for_verdict - 1, margin, kLossLevel) < kEnoughPower);
  const std::string text = joined(loss_sentences(verdict));
  INFO(text);
  CHECK(contains(text, "One run per arm decides nothing"));
  CHECK(contains(text, std::to_string(*verdict.runs_for_verdict) + " runs of each would"));
}

TEST_CASE("judge_losses: curves of other lengths are compared at the last common step", "[import]") {
  RunArm reference{"bf16", {}}, arm{"mxfp8", {}};
  for (int seed = 0; seed < 3; ++seed) {
    reference.runs.push_back(curve_at(0.0001 * seed, seed, 60));
    arm.runs.push_back(curve_at(0.0002 * seed, seed, 30));
  }
  const LossVerdict verdict = judge_losses(reference, arm, kMargin, 0.001);
  CHECK(verdict.step == 300);
  CHECK(*verdict.difference == Approx(0.0001));
  CHECK(verdict.paired);
  arm.runs[0] = curve_at(0, 0, 4);
  CHECK(contains(judge_losses(reference, arm, kMargin, 0.001).problem, "fewer than 5 lines"));
}

TEST_CASE("arm_groups: runs of one setting, the reference first, and others apart", "[import]") {
  RecordSet set;
  ImportValues given;
  for (const char* const name : {"mxfp8", "bf16"}) {
    given.recipe = name;
    for (const std::int64_t seed : {1, 2}) {
      given.seed = seed;
      set.records.push_back({*imported(torchtitan_log(), given).record, {"f", set.records.size() + 1}});
    }
  }
  set.records.push_back(set.records.front());
  set.records.back().record.case_fields["source"] = "another";
  const std::vector<ArmGroup> groups = arm_groups(set, "bf16");
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].has_reference);
  REQUIRE(groups[0].arms.size() == 2);
  CHECK(groups[0].arms[0].recipe == "bf16");
  CHECK(groups[0].arms[1].runs.size() == 2);
  CHECK(groups[0].arms[1].runs[1].seed == 2);
  CHECK(groups[0].global_batch == 8);
  CHECK_FALSE(groups[1].has_reference);
}
