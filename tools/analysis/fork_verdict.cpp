// Tests over trunks, and the text of verdicts. See fork_verdict.h.
#include "tools/analysis/fork_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/analysis/equivalence.h"

namespace precbench {
namespace {

std::vector<double> trunk_means(const AgeDifferences& age) {
  std::vector<double> means;
  for (const auto& [trunk, forks] : age.by_trunk) means.push_back(mean_and_spread(forks).mean);
  return means;
}

bool enough_trunks(const ForkEvidence& evidence) {
  return !evidence.ages.empty() &&
         std::all_of(evidence.ages.begin(), evidence.ages.end(), [](const AgeDifferences& age) {
           return age.by_trunk.size() >= std::size_t{kFewestUnits};
         });
}

/// Returns the level at which this look tests, and the next one.
double level_now(const ForkEvidence& evidence, double level) {
  return level * level_share(evidence.looks.count());
}
double level_next(const ForkEvidence& evidence, double level) {
  return level * level_share(evidence.looks.next());
}

/// Returns the p-value of equivalence at every age: all must hold, so it is the largest p.
double p_at_every_age(const ForkEvidence& evidence, const ForkRules& rules) {
  double p = 0;
  for (const AgeDifferences& age : evidence.ages)
    p = std::max(p, equivalence_p(trunk_means(age), rules.bound(age.age)));
  return p;
}

/// Returns the age with the strongest evidence against "no worse" (sign +1) or "no better"
/// (-1), and its p-value.
std::pair<const AgeDifferences*, double> most_apart(const ForkEvidence& evidence, int sign) {
  std::pair<const AgeDifferences*, double> most{nullptr, 2};
  for (const AgeDifferences& age : evidence.ages)
    if (const double p = p_of_beyond(trunk_means(age), 0, -sign); p < most.second) most = {&age, p};
  return most;
}

/// Returns the p-value of "no worse at any age" (sign +1) or "no better" (-1). One age suffices, hence
/// Bonferroni's correction.
double difference_p(const ForkEvidence& evidence, int sign) {
  return std::min(most_apart(evidence, sign).second * static_cast<double>(evidence.ages.size()), 1.0);
}

/// Returns the number of trunks at which the interval of their mean would exclude zero.
std::optional<int> trunks_to_differ(const std::vector<double>& means, double tail) {
  const MeanAndSpread m = mean_and_spread(means);
  return fewest_units([&](int n) { return would_differ(m, n, tail); }, means.size());
}

/// Returns a control minus its base recipe, as a single age: each trunk's differences at all
/// ages that both have.
ForkEvidence apart(const ForkEvidence& control, const ForkEvidence& recipe) {
  ForkEvidence apart{control.recipe, {{0, {}}}, {}, 0};
  apart.looks = control.looks.count() < recipe.looks.count() ? recipe.looks : control.looks;
  for (const AgeDifferences& age : control.ages)
    for (const AgeDifferences& other : recipe.ages) {
      if (other.age != age.age) continue;
      for (const auto& [trunk, forks] : age.by_trunk)
        if (const auto same = other.by_trunk.find(trunk); same != other.by_trunk.end())
          apart.ages.front().by_trunk[trunk].push_back(mean_and_spread(forks).mean -
                                                       mean_and_spread(same->second).mean);
    }
  return apart;
}

/// Returns the end iterator if there are no ages.
std::vector<AgeDifferences>::const_iterator oldest_of(const ForkEvidence& evidence) {
  return std::max_element(evidence.ages.begin(), evidence.ages.end(),
                          [](const AgeDifferences& a, const AgeDifferences& b) { return a.age < b.age; });
}

std::string in_nats(const MeanWithInterval& d) {
  return fmt::format("{:+.5f} nats [{:+.5f}, {:+.5f}]", d.mean, d.low, d.high);
}

/// Returns the trend over the trunks. Each trunk's slope is over log2 of the length: the relative lengths
/// 1/4, 1/2 and 1 are at -2, -1 and 0, so the least-squares slope is half of (last minus first).
std::optional<MeanWithInterval> trend_of(const ForkEvidence& evidence) {
  std::vector<double> slopes;
  for (const std::vector<double>& lengths : evidence.by_length)
    if (lengths.size() == 3) slopes.push_back((lengths[2] - lengths[0]) / 2);
  return mean_with_interval(slopes);
}

/// Fills everything that does not depend on a test.
ForkVerdict describe(const ForkEvidence& evidence) {
  ForkVerdict verdict;
  verdict.recipe = evidence.recipe;
  verdict.looks = evidence.looks;
  std::size_t trunks = SIZE_MAX, seeds = SIZE_MAX;
  for (const AgeDifferences& age : evidence.ages) {
    trunks = std::min(trunks, age.by_trunk.size());
    for (const auto& [trunk, forks] : age.by_trunk) seeds = std::min(seeds, forks.size());
    const std::vector<double> means = trunk_means(age);
    const auto interval = mean_with_interval(means);
    verdict.by_age.push_back({age.age, std::nullopt, interval});
    if (!means.empty()) verdict.by_age.back().mean = mean_and_spread(means).mean;
    if (!interval || (verdict.difference && std::abs(interval->mean) <= std::abs(verdict.difference->mean)))
      continue;
    verdict.difference = interval;
    verdict.age = age.age;
  }
  verdict.trunks = trunks == SIZE_MAX ? 0 : static_cast<int>(trunks);
  verdict.seeds = seeds == SIZE_MAX ? 0 : static_cast<int>(seeds);
  verdict.trend = trend_of(evidence);
  return verdict;
}

/// Returns why a study cannot call anything equivalent, and the remedy; null if it can.
std::optional<std::string> blind_reason(const NoiseFloor& floor, int controls,
                                        const std::vector<std::string>& missed, const ForkRules& rules) {
  std::vector<std::string> reasons;
  if (controls == 0)
    reasons.push_back(
        "no positive control was run, so the study cannot say that it would have seen harm: [control] in "
        "its settings names some");
  else if (!missed.empty())
    reasons.push_back(fmt::format("the positive control {} was not found: the study could not have seen harm",
                                  fmt::join(missed, ", ")));
  if (!floor.nats)
    reasons.push_back(
        "the noise floor was not measured: the same study, started again, adds what is missing");
  else if (*floor.nats > rules.largest_floor())
    reasons.push_back(
        fmt::format("the noise floor of {:.5f} nats is above a tenth of the margin of {:.5f} ({})",
                    *floor.nats, rules.strictest(), remedy_words(floor.quiet, "more tokens per step")));
  if (reasons.empty()) return std::nullopt;
  return fmt::format("{}", fmt::join(reasons, "; "));
}

/// Returns what would settle a recipe that is not inside the bound at an age with these trunk means.
/// `next_level`: level of the study's next look, at which more trunks are judged.
std::string what_would_settle(const std::vector<double>& means, std::size_t recipes, std::size_t ages,
                              double bound, double next_level) {
  const MeanAndSpread m = mean_and_spread(means);
  const double level = next_level / static_cast<double>(recipes);
  const auto settles = [&](int n) { return would_be_equivalent(m, n, bound, level); };
  if (const auto trunks = fewest_units(settles, means.size()))
    return fmt::format("about {} trunks would settle it", *trunks);
  const auto shown = trunks_to_differ(means, level / 2 / static_cast<double>(ages));
  return shown ? fmt::format("about {} trunks would show that it is {}", *shown,
                             m.mean > 0 ? "worse" : "better")
               : std::string("no number of trunks would settle it at this mean; more tokens per step may");
}

std::string inconclusive_reason(const ForkEvidence& evidence, const std::optional<std::string>& blind,
                                std::size_t recipes, const ForkRules& rules) {
  if (blind) return *blind;
  for (const AgeDifferences& age : evidence.ages) {
    const std::vector<double> means = trunk_means(age);
    const double bound = rules.bound(age.age);
    if (is_equivalent(means, bound, level_now(evidence, rules.level))) continue;
    return fmt::format("after {} steps {} is not inside +-{:.5f}; {}", age.age,
                       in_nats(*mean_with_interval(means)), bound,
                       what_would_settle(means, recipes, evidence.ages.size(), bound,
                                         level_next(evidence, rules.level)));
  }
  return "inside the bound by itself, but not with the correction for several recipes: more trunks may settle it";
}

/// Judges a recipe by forks that diverged, its own or the reference's. Returns false if there are none.
bool judge_divergence(const ForkEvidence& evidence, ForkVerdict& verdict) {
  const int diverged = evidence.diverged, reference_diverged = evidence.reference_diverged;
  const std::string& reference = evidence.reference;
  if (diverged == 0 && reference_diverged == 0) return false;
  if (diverged > 0 && reference_diverged > 0) {
    verdict.reason = fmt::format("{} of its forks and {} of {}'s diverged where the other's did not",
                                 diverged, reference_diverged, reference);
    return true;
  }
  verdict.outcome = diverged > 0 ? ForkOutcome::diverged : ForkOutcome::better;
  verdict.reason =
      diverged > 0
          ? fmt::format("{} of its forks diverged, and {}'s did not", diverged, reference)
          : fmt::format("{} of {}'s forks diverged, and its own did not", reference_diverged, reference);
  return true;
}

/// Returns " (look 2, with 3, then 7 trunks: at 10% of the level)"; empty for the first look.
std::string look_words(const Looks& looks) {
  if (looks.count() < 2) return "";
  return fmt::format(" (look {}, with {} trunks: at {:.3g}% of the level)", looks.count(),
                     fmt::join(looks.trunks, ", then "), 100 * level_share(looks.count()));
}

}  // namespace

double level_share(int look) {
  constexpr double kFirst = 0.8;
  if (look < 1) return 1;
  return look == 1 ? kFirst : (1 - kFirst) * std::pow(0.5, look - 1);
}

const char* name_of(ForkOutcome outcome) {
  static constexpr const char* kNames[] = {"equivalent", "worse", "better", "diverged", "inconclusive"};
  return kNames[static_cast<int>(outcome)];
}

std::optional<double> noise_floor(const ForkEvidence& neutral) {
  std::optional<double> floor;
  for (const AgeDifferences& age : neutral.ages) {
    const auto interval = mean_with_interval(trunk_means(age));
    if (!interval) return std::nullopt;
    floor = std::max({floor.value_or(0), std::abs(interval->low), std::abs(interval->high)});
  }
  return floor;
}

std::optional<double> oldest_difference(const ForkEvidence& evidence) {
  const auto oldest = oldest_of(evidence);
  if (oldest == evidence.ages.end() || oldest->by_trunk.empty()) return std::nullopt;
  return mean_and_spread(trunk_means(*oldest)).mean;
}

bool told_apart(const ForkEvidence& control, const ForkEvidence& recipe, double level) {
  if (control.diverged > 0 && recipe.diverged == 0) return true;
  const ForkEvidence difference = apart(control, recipe);
  return enough_trunks(difference) && std::min(difference_p(difference, +1), difference_p(difference, -1)) <=
                                          level_now(difference, level) / 2;
}

std::optional<int> trunks_to_tell_apart(const ForkEvidence& control, const ForkEvidence& recipe,
                                        double level) {
  const ForkEvidence difference = apart(control, recipe);
  const std::vector<double> means = trunk_means(difference.ages.front());
  if (means.size() < 2) return kFewestUnits;
  return trunks_to_differ(means, level_next(difference, level) / 2);
}

std::optional<int> trunks_to_pass_bound(const ForkEvidence& control, const ForkRules& rules) {
  const auto oldest = oldest_of(control);
  const std::vector<double> means =
      oldest == control.ages.end() ? std::vector<double>{} : trunk_means(*oldest);
  if (means.size() < 2) return kFewestUnits;
  const MeanAndSpread m = mean_and_spread(means);
  const double level = level_next(control, rules.level);
  return fewest_units([&](int n) { return m.mean - half_width(m, n, level) > rules.bound(oldest->age); },
                      means.size());
}

std::optional<int> trunks_to_quiet(const ForkEvidence& neutral, const ForkRules& rules) {
  constexpr double kTail = 0.025;  // as in mean_with_interval
  std::size_t few = SIZE_MAX;
  std::vector<MeanAndSpread> ages;
  for (const AgeDifferences& age : neutral.ages) {
    ages.push_back(mean_and_spread(trunk_means(age)));
    few = std::min(few, age.by_trunk.size());
  }
  if (ages.empty() || few < 2) return kFewestUnits;
  const auto is_quiet = [&](int n) {
    return std::all_of(ages.begin(), ages.end(), [&](const MeanAndSpread& m) {
      return std::abs(m.mean) + half_width(m, n, kTail) <= rules.largest_floor();
    });
  };
  return fewest_units(is_quiet, few);
}

std::string remedy_words(std::optional<int> trunks, const std::string& guess) {
  constexpr int kMany = 20;
  if (!trunks) return "no number of trunks would settle it; " + guess + " may";
  return fmt::format("about {} trunks would settle it{}", *trunks,
                     *trunks > kMany ? "; " + guess + " may need fewer" : "");
}

bool beyond_bound(const ForkEvidence& control, const ForkRules& rules) {
  if (control.diverged > 0) return true;
  const auto oldest = oldest_of(control);
  return oldest != control.ages.end() && oldest->by_trunk.size() >= std::size_t{kFewestUnits} &&
         p_of_beyond(trunk_means(*oldest), -rules.bound(oldest->age), -1) <= level_now(control, rules.level);
}

std::vector<ForkVerdict> judge_forks(const std::vector<ForkEvidence>& recipes,
                                     const std::vector<NoiseFloor>& floors, int controls,
                                     const std::vector<std::string>& missed, const ForkRules& rules) {
  std::vector<ForkVerdict> verdicts;
  std::vector<std::size_t> judged;
  std::vector<double> same, apart;
  for (const ForkEvidence& evidence : recipes) {
    verdicts.push_back(describe(evidence));
    if (evidence.diverged > 0 || evidence.reference_diverged > 0 || evidence.looks.awaited ||
        !enough_trunks(evidence))
      continue;
    judged.push_back(verdicts.size() - 1);
    const double share = level_share(evidence.looks.count());
    same.push_back(p_at_every_age(evidence, rules) / share);
    apart.push_back(difference_p(evidence, +1) / share);
    apart.push_back(difference_p(evidence, -1) / share);
  }
  const std::vector<bool> is_same = holm(same, rules.level), is_apart = holm(apart, rules.level);
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    const auto blind = blind_reason(floors[i], controls, missed, rules);
    ForkVerdict& verdict = verdicts[i];
    const auto place = std::find(judged.begin(), judged.end(), i);
    if (judge_divergence(recipes[i], verdict)) continue;
    if (place == judged.end()) {
      verdict.reason = verdict.looks.awaited
                           ? fmt::format("not all forks of its {} have run; the verdict comes with the last",
                                         plural(*verdict.looks.awaited, "trunk"))
                           : fmt::format("{}; {} are the fewest that settle anything",
                                         plural(verdict.trunks, "trunk"), kFewestUnits);
      continue;
    }
    const auto k = static_cast<std::size_t>(place - judged.begin());
    const bool worse = is_apart[2 * k], better = is_apart[2 * k + 1];
    // Age with the smallest p, which need not have the largest mean.
    const AgeDifferences& shown = *most_apart(recipes[i], worse ? +1 : -1).first;
    const MeanWithInterval there = *mean_with_interval(trunk_means(shown));
    if (is_same[k] && !blind) {
      verdict.outcome = ForkOutcome::equivalent;
      verdict.reason =
          fmt::format("{} at most, inside half of the margin at every age", in_nats(*verdict.difference));
    } else if (!is_same[k] && (worse || better) && std::abs(there.mean) > floors[i].nats.value_or(0)) {
      verdict.outcome = worse ? ForkOutcome::worse : ForkOutcome::better;
      verdict.difference = there, verdict.age = shown.age;
      verdict.reason = fmt::format("{} after {} steps", in_nats(there), shown.age);
    } else {
      verdict.reason = inconclusive_reason(recipes[i], blind, judged.size(), rules);
    }
    verdict.reason += look_words(verdict.looks);
  }
  return verdicts;
}

}  // namespace precbench
