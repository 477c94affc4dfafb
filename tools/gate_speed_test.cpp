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

TEST_CASE("a lower clock that may be the program's own doing is said to be", "[gate]") {
  const auto suspected = [](const Record& baseline, const Record& run) {
    const MetricResult result = speed_of(baseline, run);
    CHECK(result.verdict == GateVerdict::noisy);
    CHECK(contains(result.reason, "SM clock was 1650 MHz against 1980"));
    return contains(result.reason, "only the power cap held the clock down");
  };
  CHECK(suspected(kBase, run_at(1.2, 1.2, {"sw_power_cap"})));
  // Also of one that runs into the cap where the baseline did not.
  Record uncapped = kBase;
  uncapped.telemetry->throttle_reasons.clear();
  CHECK(suspected(uncapped, run_at(1.2, 1.2, {"sw_power_cap"})));
  for (const Reasons& reasons :
       {Reasons{}, Reasons{"hw_slowdown"}, Reasons{"applications_clocks_setting", "sw_power_cap"},
        Reasons{"sw_power_cap", "hw_power_brake_slowdown"}}) {
    INFO(reasons.size());
    CHECK_FALSE(suspected(kBase, run_at(1.2, 1.2, reasons)));
  }
  Record run = run_at(1.2, 1.2, {"sw_power_cap"});
  run.env.gpu->power_limit = 600;  // the baseline's is 700 W
  CHECK_FALSE(suspected(kBase, run));
  run.env.gpu->power_limit.reset();
  CHECK_FALSE(suspected(kBase, run));
}
