// Measures error rates of the gate for loss and memory. Injected regressions must never pass; unchanged
// reruns may fail in less than 1% of trials. The noise is that of committed records.
#include <cmath>

#include "results/record/statistics.h"
#include "tools/gate/gate_simulation.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::set_of;

namespace {

const std::string kResults = PRECBENCH_SOURCE_DIR "/results/";

/// Returns the relative differences of final losses between committed repeats after equal numbers of steps:
/// RMS 0.017%, at most 0.046%.
std::vector<double> loss_noise() {
  std::vector<double> noise;
  for (const auto& [a, b] : committed_repeats(kResults)) {
    const auto ends = trailing_means_at_equal_steps(a.training->loss, b.training->loss);
    noise.push_back(ends->second / ends->first - 1);
  }
  return noise;
}

/// Returns the number of passing cases of a check in which the seeds' losses change by these fractions.
int passing(const std::vector<double>& changes) {
  static const std::vector<Record> kSeeds = [] {
    std::vector<Record> records;
    for (int seed = 0; seed < 8; ++seed) records.push_back(samples::gpu_record("mxfp8", 250, 0, seed));
    return records;
  }();
  const std::vector<Record> baseline(kSeeds.begin(),
                                     kSeeds.begin() + static_cast<std::ptrdiff_t>(changes.size()));
  std::vector<Record> current = baseline;
  for (std::size_t i = 0; i < changes.size(); ++i)
    for (double& loss : current[i].training->loss) loss *= 1 + changes[i];
  const GateResult result = judge(set_of(baseline), set_of(current), {});
  return static_cast<int>(std::count_if(result.cases.begin(), result.cases.end(), [](const CaseResult& one) {
    return exit_status(one.verdict()) == kCheckPassed;
  }));
}

/// Returns regressions with mean `size` over the seeds, of varying size.
std::vector<double> planted_losses(int seeds, double size, Dice& dice) {
  std::vector<double> changes;
  for (int i = 0; i < seeds; ++i) changes.push_back(dice.between(0.5, 1.5));
  const double mean = mean_and_spread(changes).mean;
  for (double& change : changes) change *= size / mean;
  return changes;
}

}  // namespace

TEST_CASE(
    "gate simulation: none of 1000 injected losses above twice the tolerance passes and 99% of reruns do",
    "[gate][simulation]") {
  const int seeds = GENERATE(1, 3, 8);
  CAPTURE(seeds);
  Dice dice(2026 + static_cast<std::uint64_t>(seeds));
  const std::vector<double> noise = loss_noise();
  int missed = 0, false_alarms = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    // Log-uniform from just above twice the tolerance to a hundred times the tolerance.
    std::vector<double> worse =
        planted_losses(seeds, kMatchedLoss * 2.001 * std::pow(50, dice.between(0, 1)), dice);
    std::vector<double> repeat(worse.size());
    for (double& change : worse) change += dice.one_of(noise);
    for (double& change : repeat) change = dice.one_of(noise);
    missed += passing(worse) > 0;
    false_alarms += passing(repeat) < seeds;
  }
  CHECK(missed == 0);
  CHECK(false_alarms * 100 < kTrials);
}

TEST_CASE(
    "gate simulation: with ten times the noise between seeds a loss above twice the tolerance does not pass",
    "[gate][simulation]") {
  const int seeds = GENERATE(3, 8);
  CAPTURE(seeds);
  Dice dice(10);
  const std::vector<double> noise = loss_noise();
  int missed = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> changes(static_cast<std::size_t>(seeds));
    for (double& change : changes) change = 2.001 * kMatchedLoss + 10 * dice.one_of(noise);
    missed += passing(changes) > 0;
  }
  CHECK(missed * 200 <= kTrials);  // level of the interval: 0.5% on one side
}

TEST_CASE("gate simulation: committed repeats pass", "[gate][simulation]") {
  for (const auto& [a, b] : committed_repeats(kResults)) {
    const GateResult result = judge_one(a, b);
    CAPTURE(a.id);
    CHECK(result.exit_status() == 0);
    CHECK(result.cases.at(0).metrics.size() >= 2);
  }
}

TEST_CASE(
    "gate simulation: none of 1000 injected peaks above twice the tolerance passes and no rerun is BIGGER",
    "[gate][simulation]") {
  Dice dice(5);
  const auto repeats = committed_repeats(kResults);
  GateRules rules;
  rules.tokens_per_s.reset();
  rules.loss = false;
  int missed = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    auto [baseline, current] = dice.one_of(repeats);
    CHECK(verdict_on(baseline, current, rules) == GateVerdict::pass);  // allocations do not vary
    std::int64_t& peak = current.memory->measured->peak;
    peak = static_cast<std::int64_t>(static_cast<double>(peak) *
                                     (1 + 2.001 * *rules.memory * std::pow(50, dice.between(0, 1))));
    missed += verdict_on(baseline, current, rules) != GateVerdict::bigger;
  }
  CHECK(missed == 0);
}
