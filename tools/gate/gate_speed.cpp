// Judges speed. See gate.h for the rules.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/gate/gate.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

/// Probability beyond each end of a mean's interval.
constexpr double kBeyond = 0.0025;

/// Step times of one side in ms; the blurs are relative half-widths of the median's 95% and of the
/// mean's 99.5% interval.
struct StepTimes {
  SampleStatistics spread;
  double median_blur;
  double slowest;          ///< second slowest step
  double mean, mean_blur;  ///< with the slowest step replaced by the second slowest
  double between;          ///< ms per step by the host's clock beyond the device's
  double whole;            ///< mean of all steps, including the slowest and `between`
};

/// Returns the samples, reordered, with the largest lowered to the second largest at the end.
/// Needs two samples.
std::vector<double> with_peak_lowered(std::vector<double> samples) {
  const auto second = samples.end() - 2;
  std::nth_element(samples.begin(), second, samples.end());
  samples.back() = *second;
  return samples;
}

/// Returns the step times. `with_host`: both sides have the host's clock.
StepTimes step_times(const SpeedSample& sample, bool with_host) {
  const std::size_t count = sample.step_ms.size();
  const double n = static_cast<double>(count);
  StepTimes times{*sample_statistics(sample.step_ms), 0, 0, 0, 0, 0, 0};
  // Half-width of a median's notch (McGill, Tukey and Larsen, 1978), with q3 - min instead of the
  // interquartile range, which may be 0 by chance with few samples.
  times.median_blur = 1.57 * (times.spread.q3 - times.spread.min) / times.spread.median / std::sqrt(n);
  const std::vector<double> lowered = with_peak_lowered(sample.step_ms);
  const auto [mean, sd] = mean_and_spread(lowered);
  times.slowest = lowered.back();
  times.mean = mean;
  // n - 2 degrees of freedom, since the lowered sample carries no information.
  times.mean_blur = student_t_quantile(1 - kBeyond, n - 2) * sd / mean / std::sqrt(n);
  if (with_host) times.between = std::max(0.0, *sample.between_ms);
  times.whole = std::accumulate(sample.step_ms.begin(), sample.step_ms.end(), 0.0) / n + times.between;
  return times;
}

/// Relative change of a step time, with the half-width of its interval.
struct Change {
  double size, blur;
  double low() const { return size - blur; }
  double high() const { return size + blur; }
  /// Returns the change in clock cycles; `clocks` is this run's clock relative to the baseline's.
  Change in_cycles(double clocks) const { return {(1 + size) * clocks - 1, blur}; }
  std::string text() const { return fmt::format("{:+.2f}% +-{:.2f}%", 100 * size, 100 * blur); }
};

/// Returns true if only the power cap, equal to the baseline's, lowered this run's clock. Then the clock
/// depends on the program's own power draw, unlike with heat, a slowdown or another limit.
bool clock_follows_power(const SpeedSample& baseline, const SpeedSample& current) {
  return current.throttle_reasons == std::vector<std::string>{"sw_power_cap"} && baseline.power_limit_w &&
         baseline.power_limit_w == current.power_limit_w;
}

/// Returns how to get more samples. A fixed number of steps ignores the time limit and is part of the case.
const char* remedy(const SpeedSample& fewer) {
  return fewer.stop_reason == StopReason::fixed_steps
             ? "raise --steps, or leave it out, and --accept a new baseline"
             : "raise --time-limit";
}

struct Opinion {
  GateVerdict verdict = GateVerdict::pass;
  std::string reason{};
  double change = 0;  ///< change that the verdict is based on
};

/// Judges two sides with enough samples and positive step times.
Opinion compare(const SpeedSample& baseline, const SpeedSample& current, double tolerance) {
  const bool with_host = baseline.between_ms && current.between_ms;
  const StepTimes was = step_times(baseline, with_host), is = step_times(current, with_host);
  const Change median{is.spread.median / was.spread.median - 1, std::hypot(was.median_blur, is.median_blur)};
  const Change mean{is.mean / was.mean - 1, std::hypot(was.mean_blur, is.mean_blur)};
  const Change host{(is.mean + is.between) / (was.mean + was.between) - 1, mean.blur};
  const double whole = is.whole / was.whole - 1;
  // A change equal to the tolerance up to rounding counts as reaching it.
  constexpr double kRounding = 1e-9;
  const double limit = tolerance - kRounding;
  const bool known = baseline.sm_clock_mhz && current.sm_clock_mhz && *baseline.sm_clock_mhz > 0;
  const double clocks = known ? *current.sm_clock_mhz / *baseline.sm_clock_mhz : 1;

  const auto median_longer = [&](double factor) {
    return is.spread.min * factor > was.spread.q3 && median.in_cycles(factor).high() >= limit &&
           mean.in_cycles(factor).low() > 0;
  };
  const auto mean_longer = [&](double factor) {
    return is.spread.q3 * factor > was.slowest && mean.in_cycles(factor).low() > tolerance;
  };
  const std::string both = fmt::format("the mean step takes {} and the median {}, {:.2f}% are allowed",
                                       mean.text(), median.text(), 100 * tolerance);
  if (median_longer(1) && median_longer(clocks))
    return {GateVerdict::slower,
            fmt::format("the step takes {}, {:.2f}% are allowed", median.text(), 100 * tolerance),
            median.size};
  if (mean_longer(1) && mean_longer(clocks)) return {GateVerdict::slower, both, mean.size};
  if (median_longer(1) || mean_longer(1)) {
    const Change& longer = median_longer(1) ? median : mean;
    std::string reason = fmt::format(
        "the step takes {:+.2f}%, but the SM clock was {:.0f} MHz against {:.0f}: in clock cycles it takes "
        "{:+.2f}%, within the tolerance or the spread of the step times",
        100 * longer.size, *current.sm_clock_mhz, *baseline.sm_clock_mhz,
        100 * longer.in_cycles(clocks).size);
    if (clock_follows_power(baseline, current))
      reason += "; only the power cap held the clock down, so it may be that the program draws more";
    return {GateVerdict::noisy, reason, longer.size};
  }
  if (!(median.size < limit))
    return {GateVerdict::noisy,
            fmt::format("the median step takes {:+.2f}%, but the step times overlap", 100 * median.size),
            median.size};
  if (!(mean.size < limit))
    return {GateVerdict::noisy, both + ": some of the steps take longer, or it is noise", mean.size};
  if (!(host.size < limit))
    return {
        GateVerdict::noisy,
        fmt::format("by the host's clock the mean step takes {:+.2f}%, by the device's {:+.2f}%: time passes "
                    "between the steps",
                    100 * host.size, 100 * mean.size),
        host.size};
  if (!(whole <= 2 * tolerance))
    return {GateVerdict::noisy,
            fmt::format("with its slowest step the mean step takes {:+.2f}%: a stall, or one hiccup",
                        100 * whole),
            whole};
  for (const Change& change : {median, mean, host})
    if (!(change.high() <= 2 * tolerance))
      return {GateVerdict::noisy,
              fmt::format("{}: the step times spread too far to tell; {}", both,
                          remedy(baseline.step_ms.size() < current.step_ms.size() ? baseline : current)),
              change.size};
  const Change shorter{was.spread.median / is.spread.median - 1, median.blur};
  const bool faster = shorter.high() >= limit && is.spread.q3 < was.spread.min;
  return {faster ? GateVerdict::faster : GateVerdict::pass, "", median.size};
}

}  // namespace

MetricResult judge_speed(const SpeedSample& baseline, const SpeedSample& current, double tolerance) {
  MetricResult result{"tokens/s", "tokens/s"};
  result.tolerance = tolerance;
  const auto say = [&](GateVerdict verdict, std::string reason) {
    result.verdict = verdict;
    result.reason = std::move(reason);
    return result;
  };
  const auto was = sample_statistics(baseline.step_ms), is = sample_statistics(current.step_ms);
  if (!was || !is) return say(GateVerdict::missing, "no sample");
  if (!(was->min > 0) || !(is->min > 0)) return say(GateVerdict::missing, "a step that takes no time");
  result.change = is->median / was->median - 1;
  const bool in_baseline = baseline.step_ms.size() < current.step_ms.size();
  const SpeedSample& fewer = in_baseline ? baseline : current;
  if (fewer.step_ms.size() < kFewestSamples)
    return say(GateVerdict::noisy,
               fmt::format("{} of {} tell nothing, at least {} are needed: {}",
                           plural(fewer.step_ms.size(), "sample"), in_baseline ? "the baseline" : "this run",
                           kFewestSamples, remedy(fewer)));
  const Opinion opinion = compare(baseline, current, tolerance);
  result.change = opinion.change;
  if (exit_status(opinion.verdict) == kCheckPassed && baseline.between_ms && !current.between_ms)
    return say(GateVerdict::missing, "the record of this run lacks timing.wall_ms");
  return say(opinion.verdict, opinion.reason);
}

}  // namespace precbench
