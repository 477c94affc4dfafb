// What a lower clock excuses in the regression gate, and what it does not.
#include "results/record_samples.h"
#include "tools/catch.h"
#include "tools/gate.h"
#include "tools/test_text.h"

using namespace precbench;
using Reasons = std::vector<std::string>;

namespace {

const Record kBase = samples::gpu_record("mxfp8", 250);  // at 1980 MHz, under the power cap

/// A run whose step takes `longer` times the baseline's, at a clock lower by `slower_clock`, held down by
/// `reasons`.
Record run_at(double longer, double slower_clock, const Reasons& reasons) {
  Record record = samples::gpu_record("mxfp8", 250 * longer);
  *record.telemetry->sm_clock_mhz /= slower_clock;
  record.telemetry->throttle_reasons = reasons;
  return record;
}

MetricResult speed_of(const Record& baseline, const Record& run) {
  return judge(samples::set_of({baseline}), samples::set_of({run}), {}).cases.at(0).metrics.at(0);
}

}  // namespace

TEST_CASE("a longer step that takes as many clock cycles is NOISY", "[gate]") {
  Record throttled = run_at(1.05, 1.05, {"sw_thermal_slowdown"});
  const MetricResult result = speed_of(kBase, throttled);
  CHECK(result.verdict == GateVerdict::noisy);
  CHECK(contains(result.reason, "SM clock was 1886 MHz against 1980"));
  throttled.telemetry.reset();  // unknown clocks excuse nothing
  CHECK(speed_of(kBase, throttled).verdict == GateVerdict::slower);
}

TEST_CASE("a longer step of which a lower clock explains all but less than the tolerance is NOISY",
          "[gate]") {
  const auto verdict = [](double longer, double slower_clock) {
    return speed_of(kBase, run_at(longer, slower_clock, {"hw_thermal_slowdown"})).verdict;
  };
  // The quartiles of the samples lie 0.2% apart: in cycles too the step times lie apart.
  CHECK(verdict(1.05, 1.03) == GateVerdict::noisy);
  CHECK(verdict(1.08, 1.03) == GateVerdict::slower);
  CHECK(verdict(1.05, 0.98) == GateVerdict::slower);
}

TEST_CASE("a slower program that draws more power does not excuse itself by its clock", "[gate]") {
  const MetricResult result = speed_of(kBase, run_at(1.2, 1.2, {"sw_power_cap"}));
  CHECK(result.verdict == GateVerdict::slower);
  CHECK(contains(result.reason, "the step takes +20.00%"));
  CHECK(contains(result.reason, "the power cap held the SM clock at 1650 MHz against 1980"));
  // Nor one that runs into the cap where the baseline did not.
  Record uncapped = kBase;
  uncapped.telemetry->throttle_reasons.clear();
  CHECK(speed_of(uncapped, run_at(1.2, 1.2, {"sw_power_cap"})).verdict == GateVerdict::slower);
  // Within the tolerance it passes, and with step times that overlap it is NOISY, as at any clock.
  CHECK(speed_of(kBase, run_at(1.02, 1.2, {"sw_power_cap"})).verdict == GateVerdict::pass);
  Record overlapping = run_at(1.2, 1.2, {"sw_power_cap"});
  overlapping.timing->samples_ms[0] = 250;
  CHECK(speed_of(kBase, overlapping).verdict == GateVerdict::noisy);
}

TEST_CASE("a clock that something outside the program lowered is an excuse, under the power cap too",
          "[gate]") {
  for (const Reasons& reasons :
       {Reasons{}, Reasons{"hw_slowdown"}, Reasons{"applications_clocks_setting", "sw_power_cap"},
        Reasons{"sw_power_cap", "hw_power_brake_slowdown"}}) {
    INFO(reasons.size());
    CHECK(speed_of(kBase, run_at(1.2, 1.2, reasons)).verdict == GateVerdict::noisy);
  }
  Record run = run_at(1.2, 1.2, {"sw_power_cap"});
  run.env.gpu->power_limit = 600;  // the baseline's is 700 W
  CHECK(speed_of(kBase, run).verdict == GateVerdict::noisy);
  run.env.gpu->power_limit.reset();
  CHECK(speed_of(kBase, run).verdict == GateVerdict::noisy);
}
