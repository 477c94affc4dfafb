// Verdict on losses, per case or over its seeds. See gate_loss.h.
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

/// Returns the evaluation after the last number of steps that both have; null without one.
const Evaluation* evaluation_at(const std::vector<Evaluation>& evaluations, std::int64_t step) {
  for (const Evaluation& one : evaluations)
    if (one.step == step) return &one;
  return nullptr;
}

const std::vector<Evaluation>& evaluations_of(const LocatedRecord* located) {
  static const std::vector<Evaluation> kNone;
  return located->record.training ? located->record.training->evaluations : kNone;
}

/// Returns the probability that a further seed is as far above the others as the one at `own`.
double chance_beside_others(std::vector<double> changes, std::size_t own) {
  const double change = changes[own];
  changes.erase(changes.begin() + static_cast<std::ptrdiff_t>(own));
  const auto [mean, sd] = mean_and_spread(changes);
  const double count = static_cast<double>(changes.size());
  if (!(sd > 0)) return change > mean ? 0 : 1;
  const double t = (change - mean) / (sd * std::sqrt(1 + 1 / count));
  return std::isfinite(t) ? 1 - student_t_cdf(t, count - 1) : t > 0 ? 0 : 1;
}

void say(MetricResult& result, GateVerdict verdict, std::string reason) {
  result.verdict = verdict;
  result.reason = std::move(reason);
}

/// Returns how to tell a change from noise. `records`: as in repeats_remedy().
std::string loss_remedy(const RunNoise& noise, NoiseKind kind, const std::optional<std::size_t>& records) {
  std::string text;
  if (kind != NoiseKind::deterministic_loss) text = "; --deterministic on makes runs repeat to the bit";
  return text + repeats_remedy(noise, records);
}

}  // namespace

double LossJudge::Losses::change() const {
  double sum = 0;
  for (std::size_t i = 0; i < baseline.size(); ++i) sum += current[i] / baseline[i] - 1;
  return sum / static_cast<double>(baseline.size());
}

LossJudge::LossJudge(const std::vector<Match>& matches, const Workloads& workloads,
                     const std::optional<double>& tolerance, LossQuantity quantity)
    : workloads_(workloads),
      tolerance_(tolerance.value_or(kMatchedLoss)),
      together_(!tolerance),
      quantity_(quantity) {
  for (const Match& match : matches) {
    if (match.unfit) continue;
    places_[match.baseline] = losses_.size();
    losses_.push_back(losses_of(match));
    kinds_.push_back(loss_kind_of(match.baseline->record));
    if (losses_.back().unfit || losses_.back().absent) continue;
    Seeds& seeds = seeds_[work_of(match)];
    seeds.places.push_back(losses_.size() - 1);
    seeds.changes.push_back(losses_.back().change());
  }
  pool_noise();
  test();
}

/// Sets the noise of each case. Repeats of the seeds of one work are pooled. Each is taken relative to the current run after
/// as many steps, because repeats with a time limit do different numbers of steps, and the loss falls with them.
void LossJudge::pool_noise() {
  noise_.resize(losses_.size());
  for (const auto& [work, seeds] : seeds_) {
    std::vector<std::vector<double>> values;
    for (const std::size_t place : seeds.places) {
      const Losses& losses = losses_[place];
      std::vector<double>& ratios = values.emplace_back();
      for (std::size_t i = 0; i < losses.baseline.size(); ++i)
        ratios.push_back(losses.baseline[i] / losses.current[i]);
    }
    const std::vector<RunNoise> noise = noise_of(values, prior_of(kinds_[seeds.places.front()]));
    for (std::size_t i = 0; i < seeds.places.size(); ++i) noise_[seeds.places[i]] = noise[i];
  }
}

/// Decides which changes are significant, among all that the check judges: mean changes of works, and single
/// cases.
void LossJudge::test() {
  struct Hypothesis {
    Seeds* work;  ///< null: the case at `place`
    std::size_t place;
  };
  significant_.assign(losses_.size(), false);
  std::vector<Hypothesis> hypotheses;
  std::vector<double> chances;
  const auto add = [&](Seeds* work, std::size_t place, double chance) {
    hypotheses.push_back({work, place});
    chances.push_back(chance);
  };
  for (auto& [work, seeds] : seeds_) {
    const std::size_t count = seeds.changes.size();
    const bool together = together_ && count >= std::size_t{kFewestUnits};
    const RunNoise& noise = noise_[seeds.places.front()];
    if (together) {
      const MeanAndSpread change = mean_and_spread(seeds.changes);
      seeds.mean = change.mean;
      seeds.half_width = half_width(change, static_cast<int>(count), kLossLevel / 2);
      double chance = p_of_beyond(seeds.changes, 0, -1);
      // Seeds that are all above the tolerance need not agree on how much if noise between runs does not
      // explain it.
      const double lowest = *std::min_element(seeds.changes.begin(), seeds.changes.end());
      if (noise.prior.limit > 0 && lowest > tolerance_)
        chance = std::min(
            1.0, 2 * std::min(chance, noise.chance_of(change.mean * std::sqrt(static_cast<double>(count)))));
      add(&seeds, 0, chance);
    }
    for (std::size_t i = 0; i < count; ++i)
      add(nullptr, seeds.places[i],
          together ? chance_beside_others(seeds.changes, i)
                   : noise_[seeds.places[i]].chance_of(seeds.changes[i]));
  }
  const std::vector<bool> significant = holm(chances, kAlarmLevel / kLossQuantities);
  for (std::size_t i = 0; i < hypotheses.size(); ++i)
    if (hypotheses[i].work)
      hypotheses[i].work->significant = significant[i];
    else
      significant_[hypotheses[i].place] = significant[i];
}

LossJudge::Losses LossJudge::losses_of(const Match& match) const {
  return quantity_ == LossQuantity::final_loss ? final_losses(match) : held_out_losses(match);
}

MetricResult LossJudge::start(const Losses& losses) const {
  MetricResult result{quantity_ == LossQuantity::final_loss ? "final loss" : "held-out loss", "nats"};
  result.tolerance = tolerance_;
  if (!losses.baseline.empty()) {
    result.baseline = mean_and_spread(losses.baseline).mean;
    result.current = mean_and_spread(losses.current).mean;  // after the steps that the repeats have done
  }
  return result;
}

LossJudge::Losses LossJudge::final_losses(const Match& match) const {
  Losses losses;
  const Curve *was = curve_of(match.baseline), *is = curve_of(match.current);
  const bool has_was = was && !was->empty(), has_is = is && !is->empty();
  losses.absent = !has_was && !has_is;
  if (losses.absent) return losses;
  const auto unfit = [&](GateVerdict verdict, std::string reason) {
    losses.unfit = start({});
    say(*losses.unfit, verdict, std::move(reason));
    return losses;
  };
  if (!has_was) return unfit(GateVerdict::missing, kLackedByBaseline);
  if (!has_is) return unfit(GateVerdict::missing, kLackedByRun);
  constexpr std::size_t kFewest = 5;  // of trailing_mean
  if (const std::size_t steps = std::min(was->size(), is->size());
      steps < kFewest && was->size() == is->size())
    return unfit(GateVerdict::missing, fmt::format("{} make no final loss, at least {} do: raise --steps",
                                                   plural(steps, "step"), kFewest));
  if (const std::string why = too_short(was->size(), is->size()); !why.empty())
    return unfit(GateVerdict::noisy, why);
  for (const LocatedRecord* repeat : match.repeats) {
    const Curve* const curve = curve_of(repeat);
    if (!curve || !too_short(curve->size(), is->size()).empty()) continue;
    if (const auto ends = trailing_means_at_equal_steps(*curve, *is)) {
      losses.baseline.push_back(ends->first);
      losses.current.push_back(ends->second);
    }
  }
  if (losses.baseline.empty())
    return unfit(GateVerdict::missing, "not finite in the last steps that both sides have done");
  return losses;
}

LossJudge::Losses LossJudge::held_out_losses(const Match& match) const {
  Losses losses;
  const auto &was = evaluations_of(match.baseline), &is = evaluations_of(match.current);
  losses.absent = was.empty();
  if (losses.absent) return losses;
  const auto unfit = [&](GateVerdict verdict, std::string reason) {
    losses.unfit = start({});
    say(*losses.unfit, verdict, std::move(reason));
    return losses;
  };
  if (is.empty()) return unfit(GateVerdict::missing, kLackedByRun);
  const auto last = std::find_if(was.rbegin(), was.rend(), [&](const Evaluation& one) {
    return evaluation_at(is, one.step) != nullptr;
  });
  if (last == was.rend())
    return unfit(GateVerdict::noisy,
                 "no evaluation after as many steps as in the baseline: use its --eval-every");
  const Evaluation& now = *evaluation_at(is, last->step);
  if (now.tokens != last->tokens)
    return unfit(GateVerdict::noisy, fmt::format("{} tokens here and {} in the baseline: use its --eval-data",
                                                 now.tokens, last->tokens));
  if (!now.loss)
    return unfit(GateVerdict::worse,
                 fmt::format("not finite after {}", plural(static_cast<std::size_t>(now.step), "step")));
  for (const LocatedRecord* repeat : match.repeats)
    if (const Evaluation* one = evaluation_at(evaluations_of(repeat), last->step); one && one->loss) {
      losses.baseline.push_back(*one->loss);
      losses.current.push_back(*now.loss);
    }
  if (losses.baseline.empty()) return unfit(GateVerdict::missing, "the baseline's is not finite");
  return losses;
}

std::string LossJudge::work_of(const Match& match) const {
  nlohmann::ordered_json fields = workloads_.fields(match.baseline);
  fields.erase("seed");
  return fields.dump();
}

std::optional<MetricResult> LossJudge::judge(const Match& match, const std::string& label,
                                             Distinct& notes) const {
  const std::size_t place = places_.at(match.baseline);
  const Losses& losses = losses_[place];
  if (losses.absent) {
    if (quantity_ == LossQuantity::final_loss)
      notes.add(fmt::format("{}: loss not judged: neither side has one", label));
    else if (!evaluations_of(match.current).empty())
      notes.add(fmt::format("{}: held-out loss not judged: the baseline has none", label));
    return std::nullopt;
  }
  if (losses.unfit) return losses.unfit;
  MetricResult result = start(losses);
  result.change = losses.change();
  const Seeds& seeds = seeds_.at(work_of(match));
  if (together_ && seeds.changes.size() >= std::size_t{kFewestUnits})
    judge_with(seeds, place, result);
  else
    judge_alone(place, result);
  return result;
}

void LossJudge::judge_alone(std::size_t place, MetricResult& result) const {
  const double change = *result.change;
  const RunNoise& noise = noise_[place];
  const std::string size = fmt::format("{:+.3f}%, {:.3g}% are allowed", 100 * change, 100 * tolerance_);
  const auto noisy = [&](const std::string& text, const std::optional<std::size_t>& records) {
    say(result, GateVerdict::noisy, size + "; " + text + loss_remedy(noise, kinds_[place], records));
  };
  const double room = 2 * tolerance_ - std::abs(change);  // for the noise of a change that passes
  if (change > tolerance_ && significant_[place])
    say(result, GateVerdict::worse, size);
  else if (change > tolerance_)
    noisy(noise.text(), noise.records_to_settle(change, kLossQuantities * losses_.size()));
  else if (!(change >= -tolerance_))
    say(result, GateVerdict::noisy, size + kLower);
  else if (!(noise.half_width() <= room))
    noisy(noise.text() + ": too much for this tolerance", noise.records_to_pass(room));
}

void LossJudge::judge_with(const Seeds& seeds, std::size_t place, MetricResult& result) const {
  const double own = *result.change, mean = seeds.mean, half = seeds.half_width;
  const std::string of_all = fmt::format("{:+.3f}% +-{:.3f}%, the mean over {} seeds and its 99% interval",
                                         100 * mean, 100 * half, seeds.changes.size());
  const std::string allowed = fmt::format("; {:.3g}% are allowed", 100 * tolerance_);
  const std::string remedy =
      kinds_[place] == NoiseKind::deterministic_loss ? "more seeds" : "more seeds, or --deterministic on";
  result.change = mean;
  if (mean > tolerance_ && seeds.significant) {
    say(result, GateVerdict::worse, of_all + allowed);
  } else if (own > 2 * tolerance_ && significant_[place]) {
    result.change = own;
    say(result, GateVerdict::worse,
        fmt::format("{:+.3f}% with this seed alone, more than the {} others explain{}", 100 * own,
                    seeds.changes.size() - 1, allowed));
  } else if (!(std::abs(mean) <= tolerance_)) {
    say(result, GateVerdict::noisy,
        of_all + allowed +
            (mean < 0 ? kLower : ", but the seeds lie too far apart to call it WORSE: " + remedy));
  } else if (!(std::abs(mean) + half <= 2 * tolerance_)) {
    say(result, GateVerdict::noisy,
        of_all + allowed + ", and the seeds lie too far apart to tell: " + remedy);
  } else if (!(std::abs(own) <= 2 * tolerance_)) {
    result.change = own;
    say(result, GateVerdict::noisy, fmt::format("{:+.3f}% with this seed{}", 100 * own, allowed));
  }
}

}  // namespace precbench
