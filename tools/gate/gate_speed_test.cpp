// Tests verdicts on speed: runs with some slow steps, host time, spread, and lower clocks.
#include <cmath>
#include <limits>

#include "kernels/testing/text_checks.h"
#include "tools/gate/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using Reasons = std::vector<std::string>;

namespace {

const Record kSpeedBase = samples::gpu_record("mxfp8", 250);  // at 1980 MHz, under the power cap

/// Returns a run whose step takes `longer` times the baseline's, at a clock divided by `slower_clock` for
/// these throttle reasons.
Record run_at(double longer, double slower_clock, const Reasons& reasons) {
  Record record = samples::gpu_record("mxfp8", 250 * longer);
  *record.telemetry->sm_clock_mhz /= slower_clock;
  record.telemetry->throttle_reasons = reasons;
  return record;
}

MetricResult speed_of(const Record& baseline, const Record& run) {
  return metric_of(judge_one(baseline, run), "tokens/s");
}

/// Returns steps of 250 ms +-0.5%; the last `slow` ones take `factor` times as long.
std::vector<double> steps(std::size_t count, std::size_t slow = 0, double factor = 1) {
  std::vector<double> times;
  for (std::size_t i = 0; i < count; ++i)
    times.push_back(250 * (1 + 0.005 * std::sin(7.0 * static_cast<double>(i))) *
                    (i + slow < count ? 1 : factor));
  return times;
}

MetricResult judged(const std::vector<double>& baseline, const std::vector<double>& run) {
  return judge_speed({baseline, {}}, {run, {}}, 0.03);
}

}  // namespace

TEST_CASE("judge_speed: some much slower steps do not pass even if the median is unchanged", "[gate]") {
  for (const std::size_t count : {11u, 40u, 200u}) {
    const MetricResult result = judged(steps(count), steps(count, count * 45 / 100, 10));
    CHECK(result.verdict == GateVerdict::slower);
    CHECK(contains(result.reason, "the mean step takes +"));
    CHECK(*result.change > 3);
    for (const std::size_t slow : {count / 5, count / 10 + 1}) {
      CAPTURE(count, slow);
      CHECK(exit_status(judged(steps(count), steps(count, slow, 1.8)).verdict) != kCheckPassed);
    }
  }
  // A few slow steps may be due to the machine: NOISY rather than SLOWER.
  CHECK(judged(steps(200), steps(200, 30, 10)).verdict == GateVerdict::noisy);
  // They are not FASTER if the other steps are.
  std::vector<double> mixed = steps(40, 12, 10);
  for (double& time : mixed) time *= 0.8;
  CHECK(judged(steps(40), mixed).verdict == GateVerdict::slower);
  // As for the median, a lower clock explains a slowdown.
  CHECK(judge_speed({steps(200), 1980}, {steps(200, 90, 1.2), 1780}, 0.03).verdict == GateVerdict::noisy);
}

TEST_CASE("judge_speed: one hiccup passes on either side but a long one is NOISY", "[gate]") {
  for (const std::size_t count : {11u, 200u}) {
    const double factor = count == 11 ? 1.6 : 10;  // the mean is 5% longer
    CHECK(judged(steps(count), steps(count, 1, factor)).verdict == GateVerdict::pass);
    CHECK(judged(steps(count, 1, 10), steps(count)).verdict == GateVerdict::pass);
    CHECK(judged(steps(count, 1, 10), steps(count, 1, 10)).verdict == GateVerdict::pass);
    CHECK(exit_status(judged(steps(count), steps(count, 2, 10)).verdict) != kCheckPassed);
  }
  // With the minimum of samples, a stall every tenth step looks like one hiccup.
  for (std::size_t count = 9; count <= 20; ++count) {
    const MetricResult result = judged(steps(count), steps(count, 1, 10));
    CHECK(result.verdict == GateVerdict::noisy);
    CHECK(contains(result.reason, "with its slowest step the mean step takes +"));
    CHECK(*result.change > 0.4);
  }
}

TEST_CASE("judge_speed: time that only the host's clock shows is NOISY", "[gate]") {
  const auto with_between = [](const std::vector<double>& times, std::optional<double> between_ms) {
    SpeedSample sample{times, {}};
    sample.between_ms = between_ms;
    return sample;
  };
  const SpeedSample base = with_between(steps(40), 0.4);
  const auto verdict = [&](const SpeedSample& run) { return judge_speed(base, run, 0.03).verdict; };
  CHECK(verdict(base) == GateVerdict::pass);
  CHECK(verdict(with_between(steps(40), 5)) == GateVerdict::pass);
  const MetricResult lost = judge_speed(base, with_between(steps(40), 1030), 0.03);
  CHECK(lost.verdict == GateVerdict::noisy);
  CHECK(contains(lost.reason, "by the host's clock the mean step takes +4"));
  CHECK(contains(lost.reason, "by the device's +0.00%"));
  // Half the tolerance each on the device and between its steps.
  std::vector<double> longer = steps(40);
  for (double& time : longer) time *= 1.017;
  CHECK(verdict(with_between(longer, 0.5)) == GateVerdict::pass);
  CHECK(verdict(with_between(longer, 4.2)) == GateVerdict::noisy);
  // A hiccup on the device and time between steps, each below twice the tolerance, exceed it together.
  CHECK(verdict(with_between(steps(40, 1, 2.8), 0.4)) == GateVerdict::pass);
  CHECK(verdict(with_between(steps(40, 1, 2.8), 6)) == GateVerdict::noisy);
  CHECK(verdict(with_between(steps(40), std::nullopt)) == GateVerdict::missing);
  CHECK(judge_speed(with_between(steps(40), std::nullopt), base, 0.03).verdict == GateVerdict::pass);
}

TEST_CASE("judge_speed: widely spread step times are NOISY", "[gate]") {
  std::vector<double> wild, wilder;
  for (int i = 0; i < 12; ++i) {
    wild.push_back(250 * (1 + 0.04 * std::sin(1.0 + 5 * i)));
    wilder.push_back(250 * (1 + 0.3 * std::sin(1.0 + 5 * i)));
  }
  CHECK(judged(wild, wild).verdict == GateVerdict::pass);
  const MetricResult result = judged(wilder, wilder);
  CHECK(result.verdict == GateVerdict::noisy);
  CHECK(contains(result.reason, "the step times spread too far to tell; raise --time-limit"));
}

TEST_CASE("judge_speed: zero step time is MISSING and a huge one does not pass", "[gate]") {
  const std::vector<double> zero(20, 0.0), huge(20, std::numeric_limits<double>::max());
  CHECK(judged(zero, zero).verdict == GateVerdict::missing);
  CHECK(judged(steps(20), zero).verdict == GateVerdict::missing);
  CHECK(exit_status(judged(huge, huge).verdict) != kCheckPassed);
  CHECK(exit_status(judged(steps(20), huge).verdict) != kCheckPassed);
}

TEST_CASE("judge: a longer step with equal clock cycles is NOISY", "[gate]") {
  Record throttled = run_at(1.2, 1.2, {"sw_thermal_slowdown"});
  const MetricResult result = speed_of(kSpeedBase, throttled);
  CHECK(result.verdict == GateVerdict::noisy);
  CHECK(contains(result.reason, "SM clock was 1650 MHz against 1980"));
  throttled.telemetry.reset();  // without a clock there is no excuse
  CHECK(speed_of(kSpeedBase, throttled).verdict == GateVerdict::slower);
}

TEST_CASE("judge: a longer step that a lower clock explains up to the tolerance is NOISY", "[gate]") {
  const auto verdict = [](double longer, double slower_clock) {
    return speed_of(kSpeedBase, run_at(longer, slower_clock, {"hw_thermal_slowdown"})).verdict;
  };
  // The quartiles of the samples are 0.2% apart, so step times in cycles are disjoint as well.
  CHECK(verdict(1.05, 1.03) == GateVerdict::noisy);
  CHECK(verdict(1.20, 1.03) == GateVerdict::slower);
  CHECK(verdict(1.15, 0.98) == GateVerdict::slower);
}

TEST_CASE("judge: a lower clock due to the power cap alone is reported as possibly the program's own",
          "[gate]") {
  const auto suspected = [](const Record& baseline, const Record& run) {
    const MetricResult result = speed_of(baseline, run);
    CHECK(result.verdict == GateVerdict::noisy);
    CHECK(contains(result.reason, "SM clock was 1650 MHz against 1980"));
    return contains(result.reason, "only the power cap held the clock down");
  };
  CHECK(suspected(kSpeedBase, run_at(1.2, 1.2, {"sw_power_cap"})));
  // Also if only the new run reaches the cap.
  Record uncapped = kSpeedBase;
  uncapped.telemetry->throttle_reasons.clear();
  CHECK(suspected(uncapped, run_at(1.2, 1.2, {"sw_power_cap"})));
  for (const Reasons& reasons :
       {Reasons{}, Reasons{"hw_slowdown"}, Reasons{"applications_clocks_setting", "sw_power_cap"},
        Reasons{"sw_power_cap", "hw_power_brake_slowdown"}}) {
    INFO(reasons.size());
    CHECK_FALSE(suspected(kSpeedBase, run_at(1.2, 1.2, reasons)));
  }
  Record run = run_at(1.2, 1.2, {"sw_power_cap"});
  run.env.gpu->power_limit = 600;  // the baseline's is 700 W
  CHECK_FALSE(suspected(kSpeedBase, run));
  run.env.gpu->power_limit.reset();
  CHECK_FALSE(suspected(kSpeedBase, run));
}
