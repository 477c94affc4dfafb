// Measures error rates of the gate for speed. Injected slowdowns must never pass; unchanged reruns may fail
// in less than 1% of trials. The noise is that of committed records.
#include <algorithm>
#include <cmath>

#include "results/record/host_time.h"
#include "results/record/statistics.h"
#include "tools/gate/gate_simulation.h"

using namespace precbench;
using namespace precbench::gate_testing;

namespace {

const std::string kSpeedResults = PRECBENCH_SOURCE_DIR "/results/";
constexpr double kTolerance = 0.03;

SpeedSample sample_of(const Record& record) {
  SpeedSample sample{record.timing->samples_ms, std::nullopt};
  if (record.telemetry) sample.sm_clock_mhz = record.telemetry->sm_clock_mhz;
  sample.between_ms = between_steps_ms(*record.timing);
  return sample;
}

/// Returns `count` step times drawn with replacement.
SpeedSample drawn(const SpeedSample& from, std::size_t count, Dice& dice) {
  SpeedSample to = from;
  to.step_ms.clear();
  for (std::size_t i = 0; i < count; ++i) to.step_ms.push_back(dice.one_of(from.step_ms));
  return to;
}
/// Returns a bootstrap sample of the same size.
SpeedSample resampled(const SpeedSample& from, Dice& dice) { return drawn(from, from.step_ms.size(), dice); }

SpeedSample longer_by(SpeedSample sample, double longer) {
  for (double& step : sample.step_ms) step *= 1 + longer;
  return sample;
}

bool passes(const SpeedSample& baseline, const SpeedSample& current) {
  return exit_status(judge_speed(baseline, current, kTolerance).verdict) == kCheckPassed;
}

/// Two measurements of the same work, with noise within and between runs.
struct SpeedPair {
  SpeedSample baseline, current;
};
SpeedPair repeated_speed(const std::vector<std::pair<Record, Record>>& repeats, Dice& dice) {
  const auto& [a, b] = dice.one_of(repeats);
  return {resampled(sample_of(a), dice), resampled(sample_of(b), dice)};
}

std::vector<SpeedSample> committed_samples(const std::string& file, const std::string& device) {
  std::vector<SpeedSample> samples;
  for (const LocatedRecord& located : read_records({kSpeedResults + file}).records)
    if (located.record.status == Status::ok && located.record.case_fields["device"] == device &&
        located.record.support->path() == ExecutionPath::native &&
        located.record.timing->samples_ms.size() >= kFewestSamples)
      samples.push_back(sample_of(located.record));
  return samples;
}

/// Returns a slowdown, log-uniform from just above twice to a hundred times the tolerance.
double planted(Dice& dice) { return 2.01 * kTolerance * std::pow(50, dice.between(0, 1)); }

/// Slows down some of the steps, at least two, so that the mean step takes longer by `longer`.
void slow_some(std::vector<double>& steps, double share, double longer, Dice& dice) {
  const auto slow =
      std::max<std::size_t>(2, static_cast<std::size_t>(share * static_cast<double>(steps.size())));
  for (std::size_t i = 0; i < slow; ++i) {
    std::swap(steps[i], steps[i + dice.below(steps.size() - i)]);
    steps[i] *= 1 + longer * static_cast<double>(steps.size()) / static_cast<double>(slow);
  }
}

}  // namespace

TEST_CASE(
    "gate simulation: none of 1000 injected slowdowns above twice the tolerance passes whether in median or tail or between steps",
    "[gate][simulation]") {
  Dice dice(3);
  const auto repeats = committed_repeats(kSpeedResults);
  const auto cpu = committed_samples("cpu/convergence-tiny.jsonl.xz", "cpu");
  REQUIRE(cpu.size() == 3);
  int median_missed = 0, tail_missed = 0, between_missed = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    SpeedPair pair = repeated_speed(repeats, dice);
    if (trial % 5 == 0) {
      const SpeedSample& noisy = dice.one_of(cpu);
      pair = {resampled(noisy, dice), resampled(noisy, dice)};
    }
    const double longer = planted(dice);
    SpeedSample some = pair.current, between = pair.current;
    slow_some(some.step_ms, dice.between(0.02, 0.6), longer, dice);
    for (SpeedSample* sample : {&pair.baseline, &between})
      sample->between_ms = sample->between_ms.value_or(0);  // older records lack it
    *between.between_ms += longer * mean_and_spread(between.step_ms).mean;
    median_missed += passes(pair.baseline, longer_by(pair.current, longer));
    tail_missed += passes(pair.baseline, some);
    between_missed += passes(pair.baseline, between);
  }
  CHECK(median_missed == 0);
  CHECK(tail_missed == 0);
  CHECK(between_missed == 0);
}

TEST_CASE(
    "gate simulation: with few samples no injected slowdown passes and less than 1% of reruns are SLOWER",
    "[gate][simulation]") {
  const std::size_t count = GENERATE(5u, 6u, 8u, 10u);
  CAPTURE(count);
  Dice dice(count);
  // Relative deviations of the noisiest committed records' step times. Each record has five; dividing by
  // their own mean removes a fifth of the variance.
  SpeedSample tiny{{}, {}};
  const RecordSet baseline = read_records({kSpeedResults + "baseline/cpu-tiny.jsonl"});
  for (const LocatedRecord& located : baseline.records) {
    const std::vector<double>& steps = located.record.timing->samples_ms;
    const double mean = mean_and_spread(steps).mean;
    for (const double step : steps) tiny.step_ms.push_back(100 * (1 + std::sqrt(1.25) * (step / mean - 1)));
  }
  REQUIRE(tiny.step_ms.size() == 40);
  std::vector<SpeedSample> quieter;  // the mean's interval is narrow enough to pass, sometimes by chance
  for (const double part : {1.0, 0.5, 0.25, 0.1}) {
    quieter.push_back(tiny);
    for (double& step : quieter.back().step_ms) step = 100 + part * (step - 100);
  }
  const auto cpu = committed_samples("cpu/convergence-tiny.jsonl.xz", "cpu");
  const auto repeats = committed_repeats(kSpeedResults);
  const auto few = [&](const SpeedSample& a, const SpeedSample& b) {
    return SpeedPair{drawn(a, count, dice), drawn(b, count, dice)};
  };
  const auto check = [&](auto&& pair_of) {
    int missed = 0, slower = 0, missed_at_twice = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const SpeedPair pair = pair_of();
      slower += judge_speed(pair.baseline, pair.current, kTolerance).verdict == GateVerdict::slower;
      missed += passes(pair.baseline, longer_by(pair.current, planted(dice)));
    }
    for (int trial = 0; trial < 5 * kTrials; ++trial) {
      const SpeedPair pair = pair_of();
      missed_at_twice += passes(pair.baseline, longer_by(pair.current, 2 * kTolerance));
    }
    CHECK(missed == 0);
    CHECK(slower * 100 < kTrials);
    CHECK(missed_at_twice * 400 <= 5 * kTrials);  // level of the interval: 0.25% on one side
  };
  for (const SpeedSample& sample : quieter) check([&] { return few(sample, sample); });
  check([&] {
    const SpeedSample& sample = dice.one_of(cpu);
    return few(sample, sample);
  });
  check([&] {
    const auto& [a, b] = dice.one_of(repeats);
    return few(sample_of(a), sample_of(b));
  });
}

TEST_CASE("gate simulation: more than 99% of 1000 reruns pass", "[gate][simulation]") {
  Dice dice(7);
  const auto alarms = [&](auto&& pair_of) {
    int failed = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const auto [baseline, current] = pair_of();
      failed += !passes(baseline, current);
    }
    return failed;
  };
  const auto within = [&](const std::vector<SpeedSample>& samples) {
    return alarms([&] {
      const SpeedSample& sample = dice.one_of(samples);
      return SpeedPair{resampled(sample, dice), resampled(sample, dice)};
    });
  };
  const auto repeats = committed_repeats(kSpeedResults);
  CHECK(alarms([&] { return repeated_speed(repeats, dice); }) * 100 < kTrials);
  for (const char* file : {"h200/single.jsonl.xz", "h200x4/scaling.jsonl.xz", "baseline/nvidia-h200.jsonl.xz"})
    CHECK(within(committed_samples(file, "cuda")) * 100 < kTrials);
  CHECK(within(committed_samples("cpu/convergence-tiny.jsonl.xz", "cpu")) * 100 < kTrials);
}

TEST_CASE("gate simulation: the two halves of a run are not SLOWER", "[gate][simulation]") {
  int failed = 0, trials = 0;
  std::vector<SpeedSample> samples = committed_samples("h200/single.jsonl.xz", "cuda");
  const std::vector<SpeedSample> peers = committed_samples("h200/beside-pytorch", "cuda");
  samples.insert(samples.end(), peers.begin(), peers.end());
  for (const SpeedSample& sample : samples) {
    const auto middle = sample.step_ms.begin() + static_cast<std::ptrdiff_t>(sample.step_ms.size() / 2);
    const SpeedSample first{{sample.step_ms.begin(), middle}, sample.sm_clock_mhz};
    const SpeedSample second{{middle, sample.step_ms.end()}, sample.sm_clock_mhz};
    if (first.step_ms.size() < kFewestSamples) continue;
    ++trials;
    for (const auto& [a, b] : {std::pair{&first, &second}, std::pair{&second, &first}})
      failed += judge_speed(*a, *b, kTolerance).verdict == GateVerdict::slower;
  }
  CAPTURE(trials);
  CHECK(trials > 30);
  CHECK(failed == 0);
}

TEST_CASE(
    "gate simulation: an injected slowdown of 4% is SLOWER in 95% of trials where five repeats are quiet",
    "[gate][simulation]") {
  Dice dice(11);
  int caught = 0, alone = 0, trials = 0;
  for (const SpeedSample& sample : committed_samples("h200/single.jsonl.xz", "cuda")) {
    const auto statistics = sample_statistics(sample.step_ms);
    if (statistics->iqr() / statistics->median > 0.006) continue;  // quiet: an IQR of at most 0.6%
    for (int repeat = 0; repeat < 50; ++repeat, ++trials) {
      SpeedCase one{{}, longer_by(resampled(sample, dice), 0.04)};
      for (int record = 0; record < 5; ++record) one.baseline.push_back(resampled(sample, dice));
      caught += judge_speeds({one}, kTolerance).front().verdict == GateVerdict::slower;
      // One record a side leaves it to noise between runs.
      alone += judge_speed(one.baseline.front(), one.current, kTolerance).verdict == GateVerdict::slower;
    }
  }
  CAPTURE(caught, alone, trials);
  CHECK(trials >= 150);
  CHECK(caught * 100 >= trials * 95);
  CHECK(alone == 0);
}
