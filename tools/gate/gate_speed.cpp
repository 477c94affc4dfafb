// Judges speed. See gate.h for the rules.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  if (fewer.imported) return "import a longer log, or one with more lines";
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

/// Compares two sides with enough samples and positive step times.
class Comparison {
 public:
  Comparison(const SpeedSample& baseline, const SpeedSample& current, double tolerance, const RunNoise& noise)
      : baseline_(baseline), current_(current), tolerance_(tolerance), noise_(noise) {
    const bool with_host = baseline.between_ms && current.between_ms;
    was_ = step_times(baseline, with_host), is_ = step_times(current, with_host);
    constexpr double kBlurOverError = 1.96;  // the notch is a 95% interval
    const double median_blur = std::hypot(was_.median_blur, is_.median_blur);
    median_ = {is_.spread.median / was_.spread.median - 1, median_blur, median_blur / kBlurOverError};
    mean_ = {is_.mean / was_.mean - 1, std::hypot(was_.mean_blur, is_.mean_blur),
             std::hypot(was_.mean_error, is_.mean_error)};
    host_ = {(is_.mean + is_.between) / (was_.mean + was_.between) - 1, mean_.blur, mean_.error};
    if (baseline.sm_clock_mhz && current.sm_clock_mhz && *baseline.sm_clock_mhz > 0)
      clocks_ = *current.sm_clock_mhz / *baseline.sm_clock_mhz;
  }

  Opinion opinion() const {
    if (const auto longer = judge_longer()) return *longer;
    if (const auto doubt = doubt_pass()) return *doubt;
    const double shorter = was_.spread.median / is_.spread.median - 1;
    const bool faster = shorter + median_.blur >= limit_ && is_.spread.q3 < was_.spread.min;
    return {faster ? GateVerdict::faster : GateVerdict::pass, "", median_.size};
  }

 private:
  /// Returns true if the median step is longer. `factor`: 1 for its time, clocks_ for its clock cycles.
  bool median_longer(double factor) const {
    return is_.spread.min * factor > was_.spread.q3 && median_.in_cycles(factor).size >= limit_ &&
           mean_.in_cycles(factor).low() > 0;
  }
  /// Returns the same of the mean step.
  bool mean_longer(double factor) const {
    return is_.spread.q3 * factor > was_.slowest && mean_.in_cycles(factor).low() > tolerance_;
  }
  double chance(const Change& change) const {
    const Change in_cycles = change.in_cycles(clocks_);
    return std::max(noise_.chance_of(change.size, change.error),
                    noise_.chance_of(in_cycles.size, in_cycles.error));
  }
  std::string mean_and_median() const {
    return fmt::format("the mean step takes {} and the median {}, {:.2f}% are allowed", mean_.text(),
                       median_.text(), 100 * tolerance_);
  }

  /// Judges a step that is longer beyond its spread: SLOWER, or NOISY if it is not so in clock cycles. Null if
  /// it is not longer.
  std::optional<Opinion> judge_longer() const {
    if (median_longer(1) && median_longer(clocks_))
      return Opinion{GateVerdict::slower,
                     fmt::format("the step takes {}, {:.2f}% are allowed", median_.text(), 100 * tolerance_),
                     median_.size, chance(median_)};
    if (mean_longer(1) && mean_longer(clocks_))
      return Opinion{GateVerdict::slower, mean_and_median(), mean_.size, chance(mean_)};
    if (!median_longer(1) && !mean_longer(1)) return std::nullopt;
    const Change& longer = median_longer(1) ? median_ : mean_;
    std::string reason = fmt::format(
        "the step takes {:+.2f}%, but the SM clock was {:.0f} MHz against {:.0f}: in clock cycles it takes "
        "{:+.2f}%, within the tolerance or the spread of the step times",
        100 * longer.size, *current_.sm_clock_mhz, *baseline_.sm_clock_mhz,
        100 * longer.in_cycles(clocks_).size);
    if (clock_follows_power(baseline_, current_))
      reason += "; only the power cap held the clock down, so it may be that the program draws more";
    return Opinion{GateVerdict::noisy, std::move(reason), longer.size};
  }

  /// Returns NOISY with the first reason against a pass; null without one.
  std::optional<Opinion> doubt_pass() const {
    const auto noisy = [](std::string reason, double change) {
      return Opinion{GateVerdict::noisy, std::move(reason), change};
    };
    if (!(median_.size < limit_))
      return noisy(
          fmt::format("the median step takes {:+.2f}%, but the step times overlap", 100 * median_.size),
          median_.size);
    if (!(mean_.size < limit_))
      return noisy(mean_and_median() + ": some of the steps take longer, or it is noise", mean_.size);
    if (!(host_.size < limit_))
      return noisy(
          fmt::format("by the host's clock the mean step takes {:+.2f}%, by the device's {:+.2f}%: time "
                      "passes between the steps",
                      100 * host_.size, 100 * mean_.size),
          host_.size);
    const double whole = is_.whole / was_.whole - 1;
    if (!(whole <= 2 * tolerance_))
      return noisy(fmt::format("with its slowest step the mean step takes {:+.2f}%: a stall, or one hiccup",
                               100 * whole),
                   whole);
    for (const Change& change : {median_, mean_, host_})
      if (!(change.high() <= 2 * tolerance_)) {
        const bool fewer_before = baseline_.step_ms.size() < current_.step_ms.size();
        return noisy(fmt::format("{}: the step times spread too far to tell; {}", mean_and_median(),
                                 remedy(fewer_before ? baseline_ : current_)),
                     change.size);
      }
    for (const Change& change : {median_, mean_, host_})
      if (!(change.high(noise_) <= 2 * tolerance_)) {
        const double room = 2 * tolerance_ - change.size;  // for both kinds of noise
        const auto records =
            noise_.records_to_pass(std::sqrt(std::max(0.0, room * room - change.blur * change.blur)));
        return noisy(fmt::format("{}; {}: too much for this tolerance{}", mean_and_median(), noise_.text(),
                                 repeats_remedy(noise_, records)),
                     change.size);
      }
    return std::nullopt;
  }

  /// A change equal to the tolerance up to rounding counts as reaching it.
  static constexpr double kRounding = 1e-9;

  const SpeedSample &baseline_, &current_;
  double tolerance_;
  double limit_ = tolerance_ - kRounding;
  const RunNoise& noise_;
  StepTimes was_{}, is_{};
  Change median_{}, mean_{};
  Change host_{};      ///< of the mean step by the host's clock
  double clocks_ = 1;  ///< this run's SM clock over the baseline's
};

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
  const Opinion opinion = Comparison(baseline, current, tolerance, noise).opinion();
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
