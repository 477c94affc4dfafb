// How often the gate is wrong. Planted regressions, none of which may pass, and repeats without a change, of which
// fewer than one in a hundred may fail, with the noise of records that are committed here.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "results/statistics.h"
#include "tools/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::set_of;

namespace {

constexpr int kTrials = 1000;
constexpr double kTolerance = 0.03;  // of speed

/// Its own generator, as a library's distributions differ from another's.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

/// Committed records of one id in different files: one work, measured twice on H200s, on one day but not in one
/// session. Both orders of each pair.
std::vector<std::pair<Record, Record>> committed_repeats() {
  std::map<std::string, std::vector<Record>> by_id;
  for (const char* path : {"h200/single.jsonl", "h200/beside-peer", "h200/interleaved"})
    for (const LocatedRecord& located :
         read_records({std::string(PRECBENCH_SOURCE_DIR "/results/") + path}).records)
      if (located.record.status == Status::ok) by_id[located.record.id].push_back(located.record);
  std::vector<std::pair<Record, Record>> repeats;
  for (const auto& [id, records] : by_id)
    for (const Record& a : records)
      for (const Record& b : records)
        if (&a != &b) repeats.emplace_back(a, b);
  REQUIRE(repeats.size() >= 60);
  return repeats;
}

SpeedSample sample_of(const Record& record) {
  SpeedSample sample{record.timing->samples_ms, std::nullopt};
  if (record.telemetry) sample.sm_clock_mhz = record.telemetry->sm_clock_mhz;
  return sample;
}

/// As many of its step times, drawn with replacement.
SpeedSample resampled(const SpeedSample& from, Dice& dice, double factor = 1) {
  SpeedSample to{{}, from.sm_clock_mhz};
  for (std::size_t i = 0; i < from.step_ms.size(); ++i)
    to.step_ms.push_back(dice.one_of(from.step_ms) * factor);
  return to;
}

bool passes(const SpeedSample& baseline, const SpeedSample& current) {
  return exit_status(judge_speed(baseline, current, kTolerance).verdict) == kCheckPassed;
}

/// Two measurements of one work, both with the noise within a run and that between runs.
struct SpeedPair {
  SpeedSample baseline, current;
};
SpeedPair repeated_speed(const std::vector<std::pair<Record, Record>>& repeats, Dice& dice) {
  const auto& [a, b] = dice.one_of(repeats);
  return {resampled(sample_of(a), dice), resampled(sample_of(b), dice)};
}

std::vector<SpeedSample> committed_samples(const std::string& file, const std::string& device) {
  std::vector<SpeedSample> samples;
  for (const LocatedRecord& located : read_records({PRECBENCH_SOURCE_DIR "/results/" + file}).records)
    if (located.record.status == Status::ok && located.record.case_fields["device"] == device &&
        located.record.support->path() == ExecutionPath::native &&
        located.record.timing->samples_ms.size() >= kFewestSamples)
      samples.push_back(sample_of(located.record));
  return samples;
}

/// Slows some of the steps, two at least, so that the mean step takes longer by `longer`.
void slow_some(std::vector<double>& steps, double share, double longer, Dice& dice) {
  const auto slow =
      std::max<std::size_t>(2, static_cast<std::size_t>(share * static_cast<double>(steps.size())));
  for (std::size_t i = 0; i < slow; ++i) {
    std::swap(steps[i], steps[i + dice.below(steps.size() - i)]);
    steps[i] *= 1 + longer * static_cast<double>(steps.size()) / static_cast<double>(slow);
  }
}

/// How far the losses of committed repeats lie apart after equal numbers of steps, as fractions: 0.017% in the root
/// mean square, 0.046% at most.
std::vector<double> loss_noise() {
  std::vector<double> noise;
  for (const auto& [a, b] : committed_repeats()) {
    const auto ends = trailing_means_at_equal_steps(a.training->loss, b.training->loss);
    noise.push_back(ends->second / ends->first - 1);
  }
  return noise;
}

/// How many of the cases of one check pass, whose seeds' losses change by these fractions.
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

/// Regressions that are `size` in the mean of the seeds, and reach each in another measure.
std::vector<double> planted_losses(int seeds, double size, Dice& dice) {
  std::vector<double> changes;
  for (int i = 0; i < seeds; ++i) changes.push_back(dice.between(0.5, 1.5));
  const double mean = mean_and_spread(changes).mean;
  for (double& change : changes) change *= size / mean;
  return changes;
}

}  // namespace

TEST_CASE("of 1,000 planted losses above twice the tolerance none passes, of 1,000 repeats 99% do",
          "[gate][simulation]") {
  const int seeds = GENERATE(1, 3, 8);
  CAPTURE(seeds);
  Dice dice(2026 + static_cast<std::uint64_t>(seeds));
  const std::vector<double> noise = loss_noise();
  int missed = 0, false_alarms = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    // From just above twice the tolerance to a hundred times of it, small ones as often as large ones.
    std::vector<double> worse =
        planted_losses(seeds, kEmaTolerance * 2.001 * std::pow(50, dice.between(0, 1)), dice);
    std::vector<double> repeat(worse.size());
    for (double& change : worse) change += dice.one_of(noise);
    for (double& change : repeat) change = dice.one_of(noise);
    missed += passing(worse) > 0;
    false_alarms += passing(repeat) < seeds;
  }
  CHECK(missed == 0);
  CHECK(false_alarms * 100 < kTrials);
}

TEST_CASE("with ten times the noise between seeds a loss above twice the tolerance does not pass either",
          "[gate][simulation]") {
  const int seeds = GENERATE(3, 8);
  CAPTURE(seeds);
  Dice dice(10);
  const std::vector<double> noise = loss_noise();
  int missed = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> changes(static_cast<std::size_t>(seeds));
    for (double& change : changes) change = 2.001 * kEmaTolerance + 10 * dice.one_of(noise);
    missed += passing(changes) > 0;
  }
  CHECK(missed * 200 <= kTrials);  // the interval's level: 0.5% on one side
}

TEST_CASE("of 1,000 planted slow-downs above twice the tolerance none passes, by median nor by tail",
          "[gate][simulation]") {
  Dice dice(3);
  const auto repeats = committed_repeats();
  const auto cpu = committed_samples("cpu/convergence-tiny.jsonl", "cpu");
  REQUIRE(cpu.size() == 3);
  int median_missed = 0, tail_missed = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    SpeedPair pair = repeated_speed(repeats, dice);
    if (trial % 5 == 0) {
      const SpeedSample& noisy = dice.one_of(cpu);
      pair = {resampled(noisy, dice), resampled(noisy, dice)};
    }
    const double longer = 2.01 * kTolerance * std::pow(50, dice.between(0, 1));
    SpeedSample all = pair.current, some = pair.current;
    for (double& step : all.step_ms) step *= 1 + longer;
    slow_some(some.step_ms, dice.between(0.02, 0.6), longer, dice);
    median_missed += passes(pair.baseline, all);
    tail_missed += passes(pair.baseline, some);
  }
  CHECK(median_missed == 0);
  CHECK(tail_missed == 0);
}

TEST_CASE("of 1,000 repeats fewer than one in a hundred is called anything but a pass",
          "[gate][simulation]") {
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
  const auto repeats = committed_repeats();
  CHECK(alarms([&] { return repeated_speed(repeats, dice); }) * 100 < kTrials);
  for (const char* file : {"h200/single.jsonl", "h200x4/scaling.jsonl", "baseline/nvidia-h200.jsonl"})
    CHECK(within(committed_samples(file, "cuda")) * 100 < kTrials);
  CHECK(within(committed_samples("cpu/convergence-tiny.jsonl", "cpu")) * 100 < kTrials);
}

TEST_CASE("committed repeats pass as they are", "[gate][simulation]") {
  for (const auto& [a, b] : committed_repeats()) {
    const GateResult result = judge_one(a, b);
    CAPTURE(a.id);
    CHECK(result.exit_status() == 0);
    CHECK(result.cases.at(0).metrics.size() >= 2);
  }
}

TEST_CASE("of 1,000 planted peaks above twice the tolerance none passes, and no repeat is BIGGER",
          "[gate][simulation]") {
  Dice dice(5);
  const auto repeats = committed_repeats();
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

TEST_CASE("the two halves of a run, one after the other, are no regression", "[gate][simulation]") {
  int failed = 0, trials = 0;
  for (const SpeedSample& sample : committed_samples("h200/single.jsonl", "cuda")) {
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

TEST_CASE("a planted slow-down of 3% on a quiet record is caught", "[gate][simulation]") {
  Dice dice(11);
  int caught = 0, trials = 0;
  for (const SpeedSample& sample : committed_samples("h200/single.jsonl", "cuda")) {
    const auto statistics = sample_statistics(sample.step_ms);
    if (statistics->iqr() / statistics->median > 0.006) continue;  // quiet: an IQR of at most 0.6%
    for (int repeat = 0; repeat < 200; ++repeat, ++trials)
      caught += judge_speed(resampled(sample, dice), resampled(sample, dice, 1.03), kTolerance).verdict ==
                GateVerdict::slower;
  }
  CAPTURE(caught, trials);
  CHECK(trials >= 600);
  CHECK(caught * 100 >= trials * 95);
}
