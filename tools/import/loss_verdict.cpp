// Tests and power of the verdict on final losses. See loss_verdict.h.
#include "tools/import/loss_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/base/enum_names.h"
#include "kernels/base/plural.h"
#include "tools/analysis/equivalence.h"

namespace precbench {
namespace {

/// A mean difference with its standard error and degrees of freedom.
struct MeanDifference {
  double mean = 0, error = 0, freedom = 0;
};

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

/// Returns the final loss at `step`; null if a curve has too few lines before it.
std::optional<double> final_loss(const LossCurve& curve, std::int64_t step) {
  const auto end = std::upper_bound(curve.steps.begin(), curve.steps.end(), step);
  return trailing_mean(std::span(curve.loss).first(static_cast<std::size_t>(end - curve.steps.begin())));
}

std::int64_t last_common_step(const RunArm& a, const RunArm& b) {
  std::int64_t step = std::numeric_limits<std::int64_t>::max();
  for (const RunArm* arm : {&a, &b})
    for (const LossCurve& curve : arm->runs)
      if (!curve.diverged) step = std::min(step, curve.steps.empty() ? 0 : curve.steps.back());
  return step;
}

/// Returns the differences of runs with equal seeds; empty unless every run has a partner.
std::vector<double> paired_differences(const RunArm& reference, const RunArm& arm, std::int64_t step) {
  std::map<std::int64_t, double> of_seed;
  for (const LossCurve& curve : reference.runs) {
    if (!curve.seed || of_seed.contains(*curve.seed)) return {};
    of_seed[*curve.seed] = *final_loss(curve, step);
  }
  std::vector<double> differences;
  for (const LossCurve& curve : arm.runs) {
    const auto partner = curve.seed ? of_seed.find(*curve.seed) : of_seed.end();
    if (partner == of_seed.end()) return {};
    differences.push_back(*final_loss(curve, step) - partner->second);
    of_seed.erase(partner);
  }
  return of_seed.empty() ? differences : std::vector<double>{};
}

std::vector<double> losses_of(const RunArm& arm, std::int64_t step) {
  std::vector<double> losses;
  for (const LossCurve& curve : arm.runs) losses.push_back(*final_loss(curve, step));
  return losses;
}

/// Returns Welch's difference of means; the error is 0 unless both arms have two runs.
MeanDifference welch(const std::vector<double>& reference, const std::vector<double>& arm) {
  const MeanAndSpread a = mean_and_spread(reference), b = mean_and_spread(arm);
  MeanDifference result{b.mean - a.mean, 0, 0};
  if (reference.size() < 2 || arm.size() < 2) return result;
  const double n = static_cast<double>(reference.size()), m = static_cast<double>(arm.size());
  const double u = a.sd * a.sd / n, v = b.sd * b.sd / m;
  result.error = std::sqrt(u + v);
  if (u + v > 0) result.freedom = (u + v) * (u + v) / (u * u / (n - 1) + v * v / (m - 1));
  return result;
}

/// Returns the smallest number of runs of each arm with enough power; null if 1000 are not enough.
std::optional<int> enough_runs(double pair_sd, double margin) {
  const auto settles = [&](int count) {
    return equivalence_power(pair_sd, count, margin, kLossLevel) >= kEnoughPower;
  };
  if (settles(kFewestUnits)) return kFewestUnits;
  return fewest_units(settles, kFewestUnits);
}

}  // namespace

const char* name_of(LossOutcome outcome) {
  static constexpr EnumNames<LossOutcome, 5> kNames{
      {"equivalent", "worse", "better", "diverged", "undecided"}};
  return kNames.of(outcome);
}

double equivalence_power(double sd, int count, double margin, double level) {
  if (count < 2) return 0;
  if (!(sd > 0)) return 1;
  const double n = count, freedom = n - 1, error = sd / std::sqrt(n);
  const double quantile = student_t_quantile(1 - level, freedom);
  // Mean over the distribution of the sample's spread, s / sd = sqrt(chi^2 / freedom), by the midpoint rule.
  constexpr int kParts = 400;
  constexpr double kHighest = 6;
  const double log_scale =
      std::log(2.0) + 0.5 * freedom * std::log(0.5 * freedom) - std::lgamma(0.5 * freedom);
  double power = 0;
  for (int i = 0; i < kParts; ++i) {
    const double ratio = (i + 0.5) * kHighest / kParts;
    const double density =
        std::exp(log_scale + (freedom - 1) * std::log(ratio) - 0.5 * freedom * ratio * ratio);
    const double room = margin / error - quantile * ratio;
    if (room > 0) power += density * (2 * normal_cdf(room) - 1) * kHighest / kParts;
  }
  return std::min(1.0, power);
}

LossVerdict judge_losses(const RunArm& reference, const RunArm& arm, double relative_margin,
                         double repeat_sd) {
  LossVerdict verdict;
  verdict.recipe = arm.recipe, verdict.reference = reference.recipe;
  verdict.runs = arm.runs.size(), verdict.reference_runs = reference.runs.size();
  const auto diverged = [](const RunArm& one) {
    return std::any_of(one.runs.begin(), one.runs.end(),
                       [](const LossCurve& curve) { return curve.diverged; });
  };
  if (diverged(reference)) {
    verdict.problem = fmt::format("a run of {} diverged", reference.recipe);
    return verdict;
  }
  if (diverged(arm)) {
    verdict.outcome = LossOutcome::diverged;
    return verdict;
  }
  verdict.step = last_common_step(reference, arm);
  for (const RunArm* one : {&reference, &arm})
    for (const LossCurve& curve : one->runs)
      if (!final_loss(curve, verdict.step)) {
        verdict.problem = fmt::format("a run of {} has fewer than 5 lines with a loss up to step {}",
                                      one->recipe, verdict.step);
        return verdict;
      }
  const std::vector<double> before = losses_of(reference, verdict.step), after = losses_of(arm, verdict.step);
  const double loss = mean_and_spread(before).mean;
  verdict.margin = relative_margin * loss;
  const std::vector<double> pairs = paired_differences(reference, arm, verdict.step);
  verdict.paired = !pairs.empty();
  MeanDifference difference = welch(before, after);
  double pair_sd = difference.error * std::sqrt(static_cast<double>(std::min(before.size(), after.size())));
  if (verdict.paired) {
    const MeanAndSpread spread = mean_and_spread(pairs);
    const double n = static_cast<double>(pairs.size());
    difference = {spread.mean, pairs.size() > 1 ? spread.sd / std::sqrt(n) : 0, n - 1};
    pair_sd = spread.sd;
  }
  verdict.difference = difference.mean;
  const bool spread_known = difference.error > 0;
  if (!spread_known) {
    verdict.assumed_spread = true;
    pair_sd = std::sqrt(2.0) * repeat_sd * loss;
  }
  const std::size_t fewest = std::min(before.size(), after.size());
  verdict.power = equivalence_power(pair_sd, static_cast<int>(fewest), verdict.margin, kLossLevel);
  verdict.runs_for_verdict = enough_runs(pair_sd, verdict.margin);
  if (!spread_known) return verdict;
  const double half = student_t_quantile(1 - kLossLevel / 2, difference.freedom) * difference.error;
  verdict.interval = MeanWithInterval{difference.mean, difference.mean - half, difference.mean + half};
  if (fewest < static_cast<std::size_t>(kFewestUnits)) return verdict;
  const double reach = student_t_quantile(1 - kLossLevel, difference.freedom) * difference.error;
  if (std::abs(difference.mean) + reach < verdict.margin)
    verdict.outcome = LossOutcome::equivalent;
  else if (verdict.interval->low > 0)
    verdict.outcome = LossOutcome::worse;
  else if (verdict.interval->high < 0)
    verdict.outcome = LossOutcome::better;
  return verdict;
}

std::vector<std::string> loss_sentences(const LossVerdict& verdict) {
  std::vector<std::string> lines;
  const std::string arms = fmt::format("{} ({}) beside {} ({})", verdict.recipe, plural(verdict.runs, "run"),
                                       verdict.reference, plural(verdict.reference_runs, "run"));
  if (!verdict.problem.empty()) return {fmt::format("loss of {}: not compared: {}", arms, verdict.problem)};
  if (verdict.outcome == LossOutcome::diverged) return {fmt::format("loss of {}: diverged", arms)};
  std::string line = fmt::format("loss of {} at step {}: {}, {:+.5f} nats", arms, verdict.step,
                                 name_of(verdict.outcome), *verdict.difference);
  if (verdict.interval)
    line += fmt::format(" [{:+.5f}, {:+.5f}]", verdict.interval->low, verdict.interval->high);
  line +=
      fmt::format("; margin {:.5f}, {}", verdict.margin, verdict.paired ? "paired by seed" : "not paired");
  lines.push_back(std::move(line));
  const std::string needed =
      verdict.runs_for_verdict
          ? plural(static_cast<std::size_t>(*verdict.runs_for_verdict), "run") + " of each"
          : std::string("not even 1,000 runs of each");
  const char* const would = verdict.runs_for_verdict ? "would" : "would not";
  if (verdict.runs == 1 || verdict.reference_runs == 1) {
    lines.push_back(fmt::format(
        "One run per arm decides nothing: it does not show how far two runs of one recipe lie apart. If that is as far "
        "as in the repeats of equal seeds that come with the program, {} {} show with a probability of {:.0f}% that "
        "an equal recipe is equivalent. Other seeds lie further apart.",
        needed, verdict.runs_for_verdict ? "would" : "would not", 100 * kEnoughPower));
  } else {
    lines.push_back(fmt::format(
        "Power: with so many runs an equal recipe is found equivalent with a probability of {:.0f}%; {} {} reach {:.0f}%.",
        100 * verdict.power.value_or(0), needed, would, 100 * kEnoughPower));
  }
  return lines;
}

}  // namespace precbench
