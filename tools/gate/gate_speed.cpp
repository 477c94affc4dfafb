// Judges speed. See gate.h for the rules.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/analysis/equivalence.h"
#include "tools/gate/gate.h"
#include "tools/gate/gate_noise.h"
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
  double mean_error;       ///< standard error of the mean, relative
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
  StepTimes times{*sample_statistics(sample.step_ms), 0, 0, 0, 0, 0, 0, 0};
  // Half-width of a median's notch (McGill, Tukey and Larsen, 1978), with q3 - min instead of the
  // interquartile range, which may be 0 by chance with few samples.
  times.median_blur = 1.57 * (times.spread.q3 - times.spread.min) / times.spread.median / std::sqrt(n);
  const std::vector<double> lowered = with_peak_lowered(sample.step_ms);
  const auto [mean, sd] = mean_and_spread(lowered);
  times.slowest = lowered.back();
  times.mean = mean;
  // n - 2 degrees of freedom, since the lowered sample carries no information.
  times.mean_error = sd / mean / std::sqrt(n);
  times.mean_blur = student_t_quantile(1 - kBeyond, n - 2) * times.mean_error;
  if (with_host) times.between = std::max(0.0, *sample.between_ms);
  times.whole = std::accumulate(sample.step_ms.begin(), sample.step_ms.end(), 0.0) / n + times.between;
  return times;
}

/// Relative change of a step time, with the half-width of its interval and its standard error, both from the
/// spread within the runs.
struct Change {
  double size, blur, error;
  double low() const { return size - blur; }
  double high() const { return size + blur; }
  /// Returns the change in clock cycles; `clocks` is this run's clock relative to the baseline's.
  Change in_cycles(double clocks) const { return {(1 + size) * clocks - 1, blur, error}; }
  /// Returns the upper end of the interval with the noise between runs.
  double high(const RunNoise& noise) const { return size + std::hypot(blur, noise.half_width()); }
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
  double chance = 1;  ///< of SLOWER: probability that an unchanged run is as slow (RunNoise::chance_of)
};

/// Judges two sides with enough samples and positive step times.
Opinion compare(const SpeedSample& baseline, const SpeedSample& current, double tolerance,
                const RunNoise& noise) {
  const bool with_host = baseline.between_ms && current.between_ms;
  const StepTimes was = step_times(baseline, with_host), is = step_times(current, with_host);
  const double median_blur = std::hypot(was.median_blur, is.median_blur);
  constexpr double kBlurOverError = 1.96;  // the notch is a 95% interval
  const Change median{is.spread.median / was.spread.median - 1, median_blur, median_blur / kBlurOverError};
  const Change mean{is.mean / was.mean - 1, std::hypot(was.mean_blur, is.mean_blur),
                    std::hypot(was.mean_error, is.mean_error)};
  const Change host{(is.mean + is.between) / (was.mean + was.between) - 1, mean.blur, mean.error};
  const double whole = is.whole / was.whole - 1;
  // A change equal to the tolerance up to rounding counts as reaching it.
  constexpr double kRounding = 1e-9;
  const double limit = tolerance - kRounding;
  const bool known = baseline.sm_clock_mhz && current.sm_clock_mhz && *baseline.sm_clock_mhz > 0;
  const double clocks = known ? *current.sm_clock_mhz / *baseline.sm_clock_mhz : 1;

  const auto median_longer = [&](double factor) {
    return is.spread.min * factor > was.spread.q3 && median.in_cycles(factor).size >= limit &&
           mean.in_cycles(factor).low() > 0;
  };
  const auto mean_longer = [&](double factor) {
    return is.spread.q3 * factor > was.slowest && mean.in_cycles(factor).low() > tolerance;
  };
  const auto chance = [&](const Change& change) {
    const Change in_cycles = change.in_cycles(clocks);
    return std::max(noise.chance_of(change.size, change.error),
                    noise.chance_of(in_cycles.size, in_cycles.error));
  };
  const std::string both = fmt::format("the mean step takes {} and the median {}, {:.2f}% are allowed",
                                       mean.text(), median.text(), 100 * tolerance);
  if (median_longer(1) && median_longer(clocks))
    return {GateVerdict::slower,
            fmt::format("the step takes {}, {:.2f}% are allowed", median.text(), 100 * tolerance),
            median.size, chance(median)};
  if (mean_longer(1) && mean_longer(clocks)) return {GateVerdict::slower, both, mean.size, chance(mean)};
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
  for (const Change& change : {median, mean, host})
    if (!(change.high(noise) <= 2 * tolerance)) {
      const double room = 2 * tolerance - change.size;  // for both kinds of noise
      const auto records =
          noise.records_to_pass(std::sqrt(std::max(0.0, room * room - change.blur * change.blur)));
      return {GateVerdict::noisy,
              fmt::format("{}; {}: too much for this tolerance{}", both, noise.text(),
                          repeats_remedy(noise, records)),
              change.size};
    }
  const Change shorter{was.spread.median / is.spread.median - 1, median.blur, median.error};
  const bool faster = shorter.high() >= limit && is.spread.q3 < was.spread.min;
  return {faster ? GateVerdict::faster : GateVerdict::pass, "", median.size};
}

/// Returns the samples of all records of a case as one side. What not all of them have is unknown.
SpeedSample joined(const std::vector<SpeedSample>& records) {
  SpeedSample all = records.back();
  if (records.size() == 1) return all;
  all.step_ms.clear();
  double clocks = 0, between = 0;
  for (const SpeedSample& one : records) {
    all.step_ms.insert(all.step_ms.end(), one.step_ms.begin(), one.step_ms.end());
    if (!one.sm_clock_mhz) all.sm_clock_mhz.reset();
    if (!one.between_ms) all.between_ms.reset();
    clocks += one.sm_clock_mhz.value_or(0);
    between += one.between_ms.value_or(0);
    if (!one.busy.empty()) all.busy = one.busy;
  }
  const double count = static_cast<double>(records.size());
  if (all.sm_clock_mhz) all.sm_clock_mhz = clocks / count;
  if (all.between_ms) all.between_ms = between / count;
  return all;
}

/// Returns the noise of each case from the medians of its records.
std::vector<RunNoise> speed_noise(const std::vector<SpeedCase>& cases) {
  std::vector<std::vector<double>> medians(cases.size());
  bool on_cpu = false;
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const SpeedSample& record : cases[i].baseline) {
      on_cpu = on_cpu || record.on_cpu;
      if (const auto statistics = sample_statistics(record.step_ms); statistics && statistics->median > 0)
        medians[i].push_back(statistics->median);
    }
  return noise_of(medians, prior_of(on_cpu ? NoiseKind::cpu_step_time : NoiseKind::gpu_step_time));
}

/// Judges one case; a SLOWER one still needs to be significant among all cases.
MetricResult judge_alone(const SpeedSample& baseline, const SpeedSample& current, double tolerance,
                         const RunNoise& noise, double& chance) {
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
  const Opinion opinion = compare(baseline, current, tolerance, noise);
  result.change = opinion.change;
  chance = opinion.chance;
  if (exit_status(opinion.verdict) == kCheckPassed && baseline.between_ms && !current.between_ms)
    return say(GateVerdict::missing, "the record of this run lacks timing.wall_ms");
  return say(opinion.verdict, opinion.reason);
}

}  // namespace

std::vector<MetricResult> judge_speeds(const std::vector<SpeedCase>& cases, double tolerance) {
  const std::vector<RunNoise> noise = speed_noise(cases);
  std::vector<SpeedSample> baselines;
  std::vector<MetricResult> results;
  std::vector<double> chances(cases.size(), 1);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    baselines.push_back(joined(cases[i].baseline));
    results.push_back(judge_alone(baselines[i], cases[i].current, tolerance, noise[i], chances[i]));
  }
  const std::vector<bool> significant = holm(chances, kAlarmLevel);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    MetricResult& result = results[i];
    if (result.verdict != GateVerdict::slower) continue;
    const bool in_run = !cases[i].current.busy.empty();
    const std::string& busy = in_run ? cases[i].current.busy : baselines[i].busy;
    if (!busy.empty()) {
      result.verdict = GateVerdict::noisy;
      result.reason +=
          fmt::format("; but the machine was busy during {}: {}. Measure it again on a quiet machine",
                      in_run ? "this run" : "the baseline's", busy);
    } else if (!significant[i]) {
      result.verdict = GateVerdict::noisy;
      result.reason += "; " + noise[i].text() +
                       repeats_remedy(noise[i], noise[i].records_to_settle(*result.change, cases.size()));
    }
  }
  return results;
}

MetricResult judge_speed(const SpeedSample& baseline, const SpeedSample& current, double tolerance) {
  return judge_speeds({{{baseline}, current}}, tolerance).front();
}

}  // namespace precbench
