// Convergence verdicts: intervals and tests on loss curves. See convergence.h.
#include "tools/analysis/convergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"

namespace precbench {
namespace {

constexpr double kEmaPast = 0.9;
constexpr double kIntervalLevel = 0.05;  // 95% intervals
/// A run whose final loss is less than this fraction below ln V has not left the plateau of a uniform
/// prediction.
constexpr double kLearntPart = 0.05;
/// A run that loses more than this fraction of its progress again has diverged, although every loss is
/// finite.
constexpr double kLostAgainPart = 0.5;
/// Judged runs are at least this many warm-ups long: at a low learning rate a recipe has little effect.
constexpr std::size_t kFewestWarmups = 3;
/// The loss must fall by at least this many margins. Then a recipe that learns a twentieth less than BF16
/// ends outside the margin.
constexpr double kFewestMarginsFallen = 20;

/// Returns null for fewer than two values.
std::optional<Interval> interval_of(const std::vector<double>& values) {
  const auto interval = mean_with_interval(values, kIntervalLevel);
  return interval ? std::optional(Interval{interval->low, interval->high}) : std::nullopt;
}

/// Streaming exponential moving average with bias correction.
class Ema {
 public:
  double add(double loss) {
    sum_ = kEmaPast * sum_ + (1 - kEmaPast) * loss;
    weight_ = kEmaPast * weight_ + (1 - kEmaPast);
    return sum_ / weight_;
  }

 private:
  double sum_ = 0, weight_ = 0;
};

bool has_bad_loss(const LossCurve& curve) {
  return std::any_of(curve.loss.begin(), curve.loss.end(), [](double x) { return !std::isfinite(x); });
}

bool lost_it_again(const LossCurve& curve, std::optional<double> uniform_loss) {
  const auto end = trailing_mean(curve.loss);
  if (!end) return false;
  const double start = curve.loss.front();
  if (*end > std::max(start, uniform_loss.value_or(start)) * (1 + kLearntPart)) return true;
  const std::vector<double> smooth = ema(curve.loss);
  const double best = *std::min_element(smooth.begin(), smooth.end());
  return start - best > kLearntPart * start && *end > best + kLostAgainPart * (start - best);
}

bool diverged(const LossCurve& curve, std::optional<double> uniform_loss) {
  return curve.diverged || has_bad_loss(curve) || lost_it_again(curve, uniform_loss);
}

using Pair = std::pair<const LossCurve*, const LossCurve*>;

/// Returns the pairs of equal seed in which neither curve diverged.
std::vector<Pair> pair_up(const std::vector<LossCurve>& recipe, const std::vector<LossCurve>& bf16,
                          std::optional<double> uniform_loss) {
  const auto sound = [&](const LossCurve& curve) {
    return trailing_mean(curve.loss) && !diverged(curve, uniform_loss);
  };
  std::unordered_map<std::string, const LossCurve*> by_seed;
  for (const LossCurve& theirs : bf16)
    if (!by_seed.contains(theirs.seed) && sound(theirs)) by_seed.emplace(theirs.seed, &theirs);
  std::vector<Pair> pairs;
  for (const LossCurve& mine : recipe)
    if (const auto theirs = by_seed.find(mine.seed); theirs != by_seed.end() && sound(mine))
      pairs.emplace_back(&mine, theirs->second);
  return pairs;
}

/// Returns why agreement with BF16 after `steps` steps proves nothing, in one line; null if it does prove
/// something. `fallen`: decrease of BF16's loss, `margin`: both in nats.
std::optional<std::string> unfit_reason(const std::vector<Pair>& pairs, std::size_t steps, double fallen,
                                        double margin) {
  std::size_t longest = steps, warmup = 0;
  for (const auto& [mine, theirs] : pairs)
    for (const LossCurve* curve : {mine, theirs}) {
      longest = std::max(longest, curve->loss.size());
      warmup = std::max(warmup, curve->warmup);
    }
  if (longest > steps)
    return fmt::format("runs of {} to {} steps: the verdict needs equally long ones", steps, longest);
  if (steps < kFewestWarmups * warmup)
    return fmt::format("too short: {}, {} of them warm-up of the learning rate; at least {} are needed",
                       plural(steps, "step"), warmup, std::max(kFewestJudgedSteps, kFewestWarmups * warmup));
  if (steps < kFewestJudgedSteps)
    return fmt::format("too short: {}; at least {} are needed", plural(steps, "step"), kFewestJudgedSteps);
  if (fallen < kFewestMarginsFallen * margin)
    return fmt::format("too short: bf16's loss has fallen by {:.4f} nats, less than {:g} times the margin",
                       fallen, kFewestMarginsFallen);
  return std::nullopt;
}

/// Sets the verdicts that need no comparison: diverged and not learning. One broken seed is enough, whatever
/// the others do.
bool judge_alone(RecipeConvergence& result, const std::vector<LossCurve>& curves,
                 std::optional<double> uniform_loss) {
  const auto count = [&](auto&& test) {
    return static_cast<std::size_t>(std::count_if(curves.begin(), curves.end(), test));
  };
  const std::size_t broken = count([&](const LossCurve& c) { return diverged(c, uniform_loss); });
  if (broken > 0) {
    const std::size_t not_finite = count([](const LossCurve& c) { return c.diverged || has_bad_loss(c); });
    result.verdict = ConvergenceVerdict::diverged;
    result.reason = not_finite > 0 ? fmt::format("{} of {} left the finite numbers", not_finite,
                                                 plural(curves.size(), "seed"))
                                   : fmt::format("{} of {} lost again most of what was learnt", broken,
                                                 plural(curves.size(), "seed"));
    return true;
  }
  const std::size_t flat = count([&](const LossCurve& c) {
    const auto end = trailing_mean(c.loss);
    return end && uniform_loss && *end > *uniform_loss * (1 - kLearntPart);
  });
  if (flat > 0) {
    result.verdict = ConvergenceVerdict::not_learning;
    result.reason = fmt::format(
        "{} of {} end less than {:.0f}% below ln V = {:.4f}, the loss of a "
        "model that knows nothing",
        flat, plural(curves.size(), "seed"), 100 * kLearntPart, *uniform_loss);
    return true;
  }
  return false;
}

/// Sets seeds, final loss and its interval from the curves' known final losses.
void summarize(RecipeConvergence& result, const std::vector<std::optional<double>>& all_ends) {
  std::vector<double> ends;
  for (const auto& end : all_ends)
    if (end) ends.push_back(*end);
  result.seeds = static_cast<int>(ends.size());
  if (ends.empty()) return;
  result.final_loss = mean_and_spread(ends).mean;
  result.final_interval = interval_of(ends);
}

/// Returns BF16's noise band; every curve must have at least `steps` steps.
std::optional<NoiseBand> noise_band(const std::vector<const LossCurve*>& curves, std::size_t steps) {
  const int n = static_cast<int>(curves.size());
  if (n < kFewestUnits) return std::nullopt;
  NoiseBand band;
  band.seeds = n;
  std::vector<Ema> emas(curves.size());
  std::vector<double> here(curves.size());
  const double deviations = prediction_half_width(n, kIntervalLevel / 2);
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < curves.size(); ++i) here[i] = emas[i].add(curves[i]->loss[step]);
    const MeanAndSpread at_step = mean_and_spread(here);
    const double half = deviations * at_step.sd;
    band.ema_mean.push_back(at_step.mean);
    band.ema_low.push_back(at_step.mean - half);
    band.ema_high.push_back(at_step.mean + half);
  }
  return band;
}

void judge_delta(RecipeConvergence& result, const std::vector<double>& deltas, double level) {
  const int n = static_cast<int>(deltas.size());
  const MeanAndSpread delta = mean_and_spread(deltas);
  if (n < 2) {
    result.verdict = ConvergenceVerdict::inconclusive;
    result.seeds_to_settle = kFewestUnits;
    result.reason = fmt::format("one seed shows no noise; at least {} are needed", kFewestUnits);
    return;
  }
  result.delta_interval = interval_of(deltas);
  result.equivalence_p = equivalence_p(deltas, *result.margin);
  const auto differs = [&](int count) { return would_differ(delta, count, level / 2); };
  if (is_equivalent(deltas, *result.margin, level)) {
    result.verdict = ConvergenceVerdict::equivalent;
    result.reason =
        fmt::format("within +-{:.4f} nats of BF16 (p = {:.2g})", *result.margin, *result.equivalence_p);
  } else if (n >= kFewestUnits && differs(n)) {
    result.verdict = delta.mean > 0 ? ConvergenceVerdict::worse : ConvergenceVerdict::better;
    result.reason = fmt::format("the interval of the difference excludes 0, and +-{:.4f} nats do not hold it",
                                *result.margin);
  } else {
    result.verdict = ConvergenceVerdict::inconclusive;
    const auto settles = [&](int count) {
      return would_be_equivalent(delta, count, *result.margin, level) || differs(count);
    };
    result.seeds_to_settle = fewest_units(settles, static_cast<std::size_t>(std::max(n, kFewestUnits - 1)));
    result.reason = result.seeds_to_settle ? fmt::format("about {} more seeds would settle it, {} in all",
                                                         *result.seeds_to_settle - n, *result.seeds_to_settle)
                                           : "the seeds lie too far apart: not even 1000 would settle it";
  }
}

EmaErrors compare_emas(const std::vector<Pair>& pairs, std::size_t steps) {
  EmaErrors errors;
  for (const auto& [mine, theirs] : pairs) {
    const std::vector<double> a = ema(mine->loss.first(steps));
    const std::vector<double> b = ema(theirs->loss.first(steps));
    const double last = a.back() / b.back() - 1;
    double largest = 0;
    for (std::size_t i = steps / 10; i < steps; ++i) largest = std::max(largest, std::abs(a[i] / b[i] - 1));
    ++errors.runs;
    errors.within_last += std::abs(last) < kEmaTolerance;
    errors.within_throughout += largest < kEmaTolerance;
    if (std::abs(last) > std::abs(errors.last)) errors.last = last;
    errors.largest = std::max(errors.largest, largest);
  }
  return errors;
}

}  // namespace

const char* name_of(ConvergenceVerdict verdict) {
  switch (verdict) {
    case ConvergenceVerdict::equivalent:
      return "equivalent";
    case ConvergenceVerdict::better:
      return "better";
    case ConvergenceVerdict::worse:
      return "worse";
    case ConvergenceVerdict::diverged:
      return "diverged";
    case ConvergenceVerdict::not_learning:
      return "not learning";
    case ConvergenceVerdict::inconclusive:
      return "inconclusive";
  }
  return "?";
}

std::vector<double> ema(std::span<const double> loss) {
  std::vector<double> smooth;
  Ema average;
  for (const double value : loss) smooth.push_back(average.add(value));
  return smooth;
}

RecipeConvergence assess_bf16(const std::vector<LossCurve>& bf16, std::optional<double> uniform_loss) {
  RecipeConvergence result;
  result.is_bf16 = true;
  std::vector<const LossCurve*> sound;
  for (const LossCurve& curve : bf16)
    if (trailing_mean(curve.loss) && !diverged(curve, uniform_loss)) sound.push_back(&curve);
  for (const LossCurve* curve : sound)
    result.steps = result.steps ? std::min(result.steps, curve->loss.size()) : curve->loss.size();
  std::vector<std::optional<double>> ends;
  for (const LossCurve* curve : sound) ends.push_back(trailing_mean(curve->loss.first(result.steps)));
  summarize(result, ends);
  if (judge_alone(result, bf16, uniform_loss)) return result;
  result.band = noise_band(sound, result.steps);
  if (!result.band)
    result.reason = fmt::format("no noise band of {}; at least {} are needed", plural(sound.size(), "seed"),
                                kFewestUnits);
  return result;
}

RecipeConvergence compare_curves(const std::vector<LossCurve>& recipe, const std::vector<LossCurve>& bf16,
                                 std::optional<double> uniform_loss, const ConvergenceRules& rules) {
  RecipeConvergence result;
  const std::vector<Pair> pairs = pair_up(recipe, bf16, uniform_loss);
  for (const auto& [mine, theirs] : pairs) {
    const std::size_t both = std::min(mine->loss.size(), theirs->loss.size());
    result.steps = result.steps ? std::min(result.steps, both) : both;
  }
  std::vector<std::optional<double>> ends;
  for (const auto& [mine, theirs] : pairs) ends.push_back(trailing_mean(mine->loss.first(result.steps)));
  if (pairs.empty())
    for (const LossCurve& curve : recipe) ends.push_back(trailing_mean(curve.loss));
  summarize(result, ends);
  const bool settled = judge_alone(result, recipe, uniform_loss);
  if (pairs.empty()) {
    if (!settled) result.reason = "no BF16 run of the same seed to compare with";
    return result;
  }
  std::vector<double> deltas, starts, baseline_ends;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const LossCurve& theirs = *pairs[i].second;
    const auto a = ends[i], b = trailing_mean(theirs.loss.first(result.steps));
    if (!a || !b) continue;
    deltas.push_back(*a - *b);
    starts.push_back(theirs.loss.front());
    baseline_ends.push_back(*b);
  }
  if (deltas.empty()) return result;
  const MeanAndSpread baseline = mean_and_spread(baseline_ends);
  result.margin = rules.margin * baseline.mean;
  result.delta = mean_and_spread(deltas).mean;
  result.ema_errors = compare_emas(pairs, result.steps);
  result.ema_errors->runs += static_cast<int>(std::count_if(
      recipe.begin(), recipe.end(), [&](const LossCurve& c) { return diverged(c, uniform_loss); }));
  const auto unfit =
      unfit_reason(pairs, result.steps, mean_and_spread(starts).mean - baseline.mean, *result.margin);
  result.fit_to_judge = !unfit;
  if (settled) return result;
  if (unfit) {
    result.verdict = ConvergenceVerdict::inconclusive;
    result.reason = *unfit;
    return result;
  }
  if (const int n = static_cast<int>(deltas.size()); n >= kFewestUnits) {
    result.noise_half_width = prediction_half_width(n, kIntervalLevel / 2) * baseline.sd;
    result.in_noise_band = std::abs(*result.final_loss - baseline.mean) <= *result.noise_half_width;
  }
  judge_delta(result, deltas, rules.level);
  return result;
}

}  // namespace precbench
