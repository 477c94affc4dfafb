// Samples to a target loss. See samples_to_target.h.
#include "tools/import/samples_to_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/analysis/equivalence.h"

namespace precbench {
namespace {

/// Most runs of an arm that the exact test takes.
constexpr std::size_t kMostRuns = 100;

std::vector<double> logs_of(const std::vector<double>& values) {
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(value));
  return logs;
}

/// Returns the probability of a t below that of the means, with the degrees of freedom of the smaller arm; 1 if there is no spread.
double mean_p(const std::vector<double>& reference, const std::vector<double>& arm, double bound) {
  const MeanAndSpread a = mean_and_spread(reference), b = mean_and_spread(arm);
  const double n = static_cast<double>(reference.size()), m = static_cast<double>(arm.size());
  const double error = std::sqrt(a.sd * a.sd / n + b.sd * b.sd / m), excess = b.mean - a.mean - bound;
  if (!(error > 0)) return excess < 0 ? 0 : 1;
  return student_t_cdf(excess / error, std::min(n, m) - 1);
}

}  // namespace

double samples_to_target(const LossCurve& curve, double target, std::int64_t global_batch) {
  double sum = 0;
  for (std::size_t i = 0; i < curve.loss.size(); ++i) {
    if (!std::isfinite(curve.loss[i])) break;
    sum += curve.loss[i];
    if (i >= kLinesOfTarget) sum -= curve.loss[i - kLinesOfTarget];
    if (i + 1 >= kLinesOfTarget && sum / static_cast<double>(kLinesOfTarget) <= target)
      return static_cast<double>(curve.steps[i]) * static_cast<double>(global_batch);
  }
  return std::numeric_limits<double>::infinity();
}

double rank_sum_p(std::size_t reference, std::size_t arm, std::size_t wins) {
  // Share of all orders by number of wins: the arm's next run beats 0 to `reference` runs. Mann and Whitney's recursion over runs
  // of the arm, kept as probabilities so that nothing overflows.
  const std::size_t pairs = reference * arm;
  std::vector<std::vector<double>> counts(arm +
                                          1);  // by runs of the arm, for the present number of reference runs
  for (std::size_t m = 0; m <= arm; ++m) counts[m] = {1};
  for (std::size_t n = 1; n <= reference; ++n)
    for (std::size_t m = 1; m <= arm; ++m) {
      // The last of n + m runs is one of the reference, behind all m of the arm, or one of the arm, behind which there is none.
      const double of_reference = static_cast<double>(n) / static_cast<double>(n + m);
      std::vector<double> next(n * m + 1, 0);
      for (std::size_t w = 0; w < counts[m].size(); ++w) next[w + m] += of_reference * counts[m][w];
      for (std::size_t w = 0; w < counts[m - 1].size(); ++w) next[w] += (1 - of_reference) * counts[m - 1][w];
      counts[m] = std::move(next);
    }
  double p = 0;
  for (std::size_t w = std::min(wins, pairs + 1); w < counts[arm].size(); ++w) p += counts[arm][w];
  return std::min(1.0, p);
}

TargetVerdict judge_samples(const std::vector<double>& reference, const std::vector<double>& arm,
                            double tolerance) {
  TargetVerdict verdict;
  const auto finite_runs = [](const std::vector<double>& values) {
    return static_cast<std::size_t>(
        std::count_if(values.begin(), values.end(), [](double x) { return std::isfinite(x) && x > 0; }));
  };
  if (reference.empty() || arm.empty() || finite_runs(reference) < reference.size()) {
    verdict.reason = fmt::format("{} of {} reach the target; choose one that all of the reference reach",
                                 finite_runs(reference), plural(reference.size(), "reference run"));
    return verdict;
  }
  if (const std::size_t reached = finite_runs(arm); reached < arm.size()) {
    verdict.reason = fmt::format("{} of {} reach the target", reached, plural(arm.size(), "run"));
    return verdict;
  }
  const std::vector<double> a = logs_of(reference), b = logs_of(arm);
  verdict.ratio = std::exp(mean_and_spread(b).mean - mean_and_spread(a).mean);
  const double bound = std::log1p(tolerance);
  if (reference.size() < 2 || arm.size() < 2) {
    verdict.reason = "one run decides nothing: it does not show how far two runs of one recipe lie apart";
    return verdict;
  }
  if (std::max(reference.size(), arm.size()) > kMostRuns) {
    verdict.reason = fmt::format("more than {} runs of an arm", kMostRuns);
    return verdict;
  }
  std::size_t wins = 0;
  for (const double one : b)
    for (const double other : a) wins += one - bound < other;
  verdict.rank_p = rank_sum_p(reference.size(), arm.size(), wins);
  verdict.mean_p = mean_p(a, b, bound);
  verdict.accepted = verdict.rank_p <= kFalseAcceptance && verdict.mean_p <= kFalseAcceptance;
  if (!verdict.accepted) verdict.reason = "these runs do not show it";
  return verdict;
}

std::optional<int> runs_to_accept(const std::vector<double>& reference, const std::vector<double>& arm,
                                  double tolerance) {
  if (reference.size() < 2 || arm.size() < 2) return std::nullopt;
  const double sd = std::max(mean_and_spread(logs_of(reference)).sd, mean_and_spread(logs_of(arm)).sd);
  if (!std::isfinite(sd)) return std::nullopt;
  // Power of the t test; the rank sums, which must agree, take some.
  constexpr double kPowerOfMeans = 0.9;
  const auto settles = [&](int count) {
    const double n = count, freedom = n - 1;
    const double reach =
        student_t_quantile(1 - kFalseAcceptance, freedom) + student_t_quantile(kPowerOfMeans, freedom);
    return reach * sd * std::sqrt(2 / n) <= std::log1p(tolerance);
  };
  // One order in 252 of two arms of 5 runs has all of one before the other.
  constexpr int kFewest = 5;
  static_assert(1.0 / 252 <= kFalseAcceptance);
  return settles(kFewest) ? std::optional(kFewest) : fewest_units(settles, kFewest);
}

std::vector<std::string> target_sentences(const ArmGroup& group, const RunArm& arm, double target,
                                          double tolerance) {
  const RunArm& reference = group.arms.front();
  const auto samples_of = [&](const RunArm& one) {
    std::vector<double> samples;
    for (const LossCurve& curve : one.runs)
      samples.push_back(samples_to_target(curve, target, group.global_batch));
    return samples;
  };
  const std::vector<double> before = samples_of(reference), after = samples_of(arm);
  const TargetVerdict verdict = judge_samples(before, after, tolerance);
  std::string line =
      fmt::format("samples to a loss of {:g}: {} ({}) beside {} ({}): {}", target, arm.recipe,
                  plural(arm.runs.size(), "run"), reference.recipe, plural(reference.runs.size(), "run"),
                  verdict.accepted ? "accepted" : "not accepted");
  if (verdict.ratio) line += fmt::format(", {:.3f} times as many", *verdict.ratio);
  line += fmt::format("; {:g}% more are tolerated", 100 * tolerance);
  if (!verdict.reason.empty()) line += ": " + verdict.reason;
  std::vector<std::string> lines = {std::move(line)};
  if (verdict.accepted)
    lines.push_back(fmt::format(
        "A recipe that needs more is accepted with a probability of at most {:g}%, if every run that was started is here.",
        100 * kFalseAcceptance));
  else if (const auto runs = runs_to_accept(before, after, tolerance))
    lines.push_back(fmt::format("An equal recipe would be accepted four times in five with {} of each.",
                                plural(static_cast<std::size_t>(*runs), "run")));
  return lines;
}

}  // namespace precbench
