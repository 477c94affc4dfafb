// Is a run slower than its baseline?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "results/statistics.h"
#include "tools/gate.h"
#include "tools/text.h"

namespace precbench {
namespace {

/// Whether this run's clock is where the program's own draw of power put it: nothing but the power cap held
/// it down, and the cap is the baseline's. Heat, a slowdown or another limit come from outside the program.
bool clock_follows_power(const SpeedSample& baseline, const SpeedSample& current) {
  return current.throttle_reasons == std::vector<std::string>{"sw_power_cap"} && baseline.power_limit_w &&
         baseline.power_limit_w == current.power_limit_w;
}

}  // namespace

MetricResult judge_speed(const SpeedSample& baseline, const SpeedSample& current, double tolerance) {
  MetricResult result{"tokens/s", "tokens/s"};
  result.tolerance = tolerance;
  const auto was = sample_statistics(baseline.step_ms), is = sample_statistics(current.step_ms);
  if (!was || !is) {
    result.verdict = GateVerdict::missing;
    result.reason = "no sample";
    return result;
  }
  const double ratio = is->median / was->median;
  result.change = ratio - 1;
  const bool in_baseline = baseline.step_ms.size() < current.step_ms.size();
  const SpeedSample& fewer = in_baseline ? baseline : current;
  if (fewer.step_ms.size() < kFewestSamples) {
    result.verdict = GateVerdict::noisy;
    // A fixed number of steps knows no time limit, and is part of the case.
    const char* remedy = fewer.stop_reason == StopReason::fixed_steps
                             ? "raise --steps, or leave it out, and --accept a new baseline"
                             : "raise --time-limit";
    result.reason = fmt::format("{} of {} tell nothing, at least {} are needed: {}",
                                plural(fewer.step_ms.size(), "sample"),
                                in_baseline ? "the baseline" : "this run", kFewestSamples, remedy);
    return result;
  }
  // About the 95% interval of a median: half the width of its notch (McGill, Tukey and Larsen, 1978), with
  // q3 - min for the interquartile range, which may be 0 by chance where samples are few.
  const auto uncertainty = [](const SampleStatistics& s, std::size_t n) {
    return 1.57 * (s.q3 - s.min) / s.median / std::sqrt(static_cast<double>(n));
  };
  const double blur =
      std::hypot(uncertainty(*was, baseline.step_ms.size()), uncertainty(*is, current.step_ms.size()));
  // A change of exactly the tolerance counts as one, whatever the last bit says.
  constexpr double kRounding = 1e-9;
  const auto reaches = [&](double longer) { return longer - 1 >= tolerance - blur - kRounding; };
  if (reaches(1 / ratio) && is->q3 < was->min) {
    result.verdict = GateVerdict::faster;
  } else if (reaches(ratio) && is->min > was->q3) {
    const bool known = baseline.sm_clock_mhz && current.sm_clock_mhz && *baseline.sm_clock_mhz > 0;
    const double clocks = known ? *current.sm_clock_mhz / *baseline.sm_clock_mhz : 1;
    const bool in_cycles = is->min * clocks > was->q3 && reaches(ratio * clocks);
    if (in_cycles) {
      result.verdict = GateVerdict::slower;
      result.reason = fmt::format("the step takes {:+.2f}% +-{:.2f}%, {:.2f}% are allowed",
                                  100 * *result.change, 100 * blur, 100 * tolerance);
    } else {
      result.verdict = GateVerdict::noisy;
      result.reason = fmt::format(
          "the step takes {:+.2f}%, but the SM clock was {:.0f} MHz against {:.0f}: in clock cycles it takes "
          "{:+.2f}%, within the tolerance or the spread of the step times",
          100 * *result.change, *current.sm_clock_mhz, *baseline.sm_clock_mhz, 100 * (ratio * clocks - 1));
      if (clock_follows_power(baseline, current))
        result.reason += "; only the power cap held the clock down, so it may be that the program draws more";
    }
  } else if (result.change >= tolerance) {
    result.verdict = GateVerdict::noisy;
    result.reason =
        fmt::format("the median step takes {:+.2f}%, but the step times overlap", 100 * *result.change);
  }
  return result;
}

}  // namespace precbench
