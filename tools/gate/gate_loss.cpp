// Verdict on the final loss, per case or over its seeds. See gate_loss.h.
#include "tools/gate/gate_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/analysis/equivalence.h"

namespace precbench {
namespace {

/// Probability that the mean change of unchanged reruns is outside its interval, both sides combined.
constexpr double kLossLevel = 0.01;

const char* const kLower = ". Lower, but no repeat of the same computation; --accept it if it is meant";

using Curve = std::vector<double>;

const Curve* curve_of(const LocatedRecord* located) {
  return located && located->record.training ? &located->record.training->loss : nullptr;
}

/// Returns why two curves are too short to compare, in one line; empty if they are not. The number of steps
/// within a time limit varies: in results/h200 repeats have at least 0.45 times each other's steps.
std::string too_short(std::size_t baseline, std::size_t current) {
  const std::size_t common = std::min(baseline, current);
  if (baseline == current || (4 * current >= baseline && common >= kFewestComparedSteps)) return "";
  return fmt::format("{} here and {} in the baseline are too few to compare: raise --time-limit",
                     plural(current, "step"), baseline);
}

/// Returns the final losses of both curves; null if a curve has none.
std::optional<std::pair<double, double>> ends_of(const Match& match) {
  const Curve *was = curve_of(match.baseline), *is = curve_of(match.current);
  return was && is ? trailing_means_at_equal_steps(*was, *is) : std::nullopt;
}

/// Returns the relative change of a comparable match; null for others.
std::optional<double> change_of(const Match& match) {
  if (match.unfit) return std::nullopt;
  const auto ends = ends_of(match);
  if (!ends || !too_short(curve_of(match.baseline)->size(), curve_of(match.current)->size()).empty())
    return std::nullopt;
  return ends->second / ends->first - 1;
}

/// Returns the upper end of the 99% prediction interval from all `changes` except `own`, which they contain.
double highest_of_further_seeds(std::vector<double> changes, double own) {
  changes.erase(std::find(changes.begin(), changes.end(), own));
  const auto [mean, sd] = mean_and_spread(changes);
  return mean + prediction_half_width(static_cast<int>(changes.size()), kLossLevel / 2) * sd;
}

void say(MetricResult& result, GateVerdict verdict, std::string reason) {
  result.verdict = verdict;
  result.reason = std::move(reason);
}

}  // namespace

LossJudge::LossJudge(const std::vector<Match>& matches, const Workloads& workloads,
                     const std::optional<double>& tolerance)
    : workloads_(workloads), tolerance_(tolerance.value_or(kEmaTolerance)), together_(!tolerance) {
  if (!together_) return;
  for (const Match& match : matches)
    if (const auto change = change_of(match)) seeds_[work_of(match)].changes.push_back(*change);
  for (auto& [work, seeds] : seeds_) {
    if (seeds.changes.size() < std::size_t{kFewestUnits}) continue;
    const MeanAndSpread change = mean_and_spread(seeds.changes);
    seeds.mean = change.mean;
    seeds.half_width = half_width(change, static_cast<int>(seeds.changes.size()), kLossLevel / 2);
  }
}

std::string LossJudge::work_of(const Match& match) const {
  nlohmann::ordered_json fields = workloads_.fields(match.baseline);
  fields.erase("seed");
  return fields.dump();
}

std::optional<MetricResult> LossJudge::judge(const Match& match) const {
  const Curve *was = curve_of(match.baseline), *is = curve_of(match.current);
  if (!was || !trailing_mean(*was)) return std::nullopt;
  MetricResult result{"final loss", "nats"};
  result.baseline = trailing_mean(*was);
  result.tolerance = tolerance_;
  const auto ends = ends_of(match);
  if (!ends) {
    say(result, GateVerdict::missing, "the record of this run lacks it");
    return result;
  }
  result.baseline = ends->first;
  result.current = ends->second;
  if (const std::string why = too_short(was->size(), is->size()); !why.empty()) {
    say(result, GateVerdict::noisy, why);
    return result;
  }
  result.change = ends->second / ends->first - 1;
  const auto seeds = together_ ? seeds_.find(work_of(match)) : seeds_.end();
  if (seeds != seeds_.end() && seeds->second.changes.size() >= std::size_t{kFewestUnits})
    judge_with(seeds->second, result);
  else
    judge_alone(result);
  return result;
}

void LossJudge::judge_alone(MetricResult& result) const {
  const double change = *result.change;
  const std::string size = fmt::format("{:+.3f}%, {:.3g}% are allowed", 100 * change, 100 * tolerance_);
  if (change > tolerance_)
    say(result, GateVerdict::worse, size);
  else if (!(change >= -tolerance_))
    say(result, GateVerdict::noisy, size + kLower);
}

void LossJudge::judge_with(const Seeds& seeds, MetricResult& result) const {
  const double own = *result.change, mean = seeds.mean, half = seeds.half_width;
  const std::string of_all = fmt::format("{:+.3f}% +-{:.3f}%, the mean over {} seeds and its 99% interval",
                                         100 * mean, 100 * half, seeds.changes.size());
  const std::string allowed = fmt::format("; {:.3g}% are allowed", 100 * tolerance_);
  result.change = mean;
  if (mean > tolerance_ && mean > half) {
    say(result, GateVerdict::worse, of_all + allowed);
  } else if (own > 2 * tolerance_ && own > highest_of_further_seeds(seeds.changes, own)) {
    result.change = own;
    say(result, GateVerdict::worse,
        fmt::format("{:+.3f}% with this seed alone, more than the {} others explain{}", 100 * own,
                    seeds.changes.size() - 1, allowed));
  } else if (!(std::abs(mean) <= tolerance_)) {
    say(result, GateVerdict::noisy,
        of_all + allowed + (mean < 0 ? kLower : ", but the seeds lie too far apart to call it WORSE"));
  } else if (!(std::abs(mean) + half <= 2 * tolerance_)) {
    say(result, GateVerdict::noisy,
        of_all + allowed + ", and the seeds lie too far apart to tell: more seeds");
  } else if (!(std::abs(own) <= 2 * tolerance_)) {
    result.change = own;
    say(result, GateVerdict::noisy, fmt::format("{:+.3f}% with this seed{}", 100 * own, allowed));
  }
}

}  // namespace precbench
