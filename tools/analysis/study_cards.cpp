// Evidence and verdicts of a study's recipes. See study_cards.h.
#include "tools/analysis/study_cards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "kernels/base/errors.h"
#include "results/record/statistics.h"
#include "tools/analysis/equivalence.h"
#include "tools/analysis/model_age.h"
#include "tools/analysis/published_losses.h"
#include "tools/analysis/study_evidence.h"

namespace precbench {
namespace {

/// Returns a successful fork if there is one; `cells` must not be empty.
const Record* typical_fork(const StudyCells& cells) {
  const auto ok = std::find_if(cells.begin(), cells.end(),
                               [](const auto& cell) { return cell.second->status == Status::ok; });
  return (ok == cells.end() ? cells.begin() : ok)->second;
}

/// Positive controls, and the inputs of judge_forks that depend on them.
struct Controls {
  std::vector<ControlResult> results;
  std::vector<std::string> missed;
  int run = 0;
};

Controls controls_of(const StudyRows& rows, const ForkRules& rules) {
  Controls controls;
  const auto did_run = [&](const std::string& recipe) { return !fork_unsupported_reason(rows, recipe); };
  // `trunks`: estimated number of trunks that would find a missed control.
  const auto add = [&](const std::string& name, std::optional<bool> found, std::optional<int> trunks = {},
                       std::optional<double> difference = {}) {
    if (found) ++controls.run;
    if (found && !*found)
      controls.missed.push_back(
          fmt::format("{} ({})", name, remedy_words(trunks, "more tokens per step or longer forks")));
    controls.results.push_back({name, found, difference});
  };
  bool any_apart = false, any_beyond = false;
  for (const auto& [control, other] : rows.apart) {
    const std::string name = control + " apart from " + other;
    const bool ran = did_run(control) && did_run(other);
    any_apart = any_apart || ran;
    if (!ran) {
      add(name, std::nullopt);
      continue;
    }
    const ForkEvidence worse = evidence_of(rows, control), better = evidence_of(rows, other);
    const bool found = told_apart(worse, better, rules.level);
    add(name, found, found ? std::nullopt : trunks_to_tell_apart(worse, better, rules.level),
        oldest_difference(worse));
  }
  for (const std::string& control : rows.breaks) {
    const bool ran = did_run(control);
    any_beyond = any_beyond || ran;
    const std::string name = control + " beyond half the margin";
    if (!ran) {
      add(name, std::nullopt);
      continue;
    }
    const ForkEvidence worse = evidence_of(rows, control);
    const bool found = beyond_bound(worse, rules);
    add(name, found, found ? std::nullopt : trunks_to_pass_bound(worse, rules), oldest_difference(worse));
  }
  const char* none = "(none could run: [control] in the study's settings names others)";
  if (!any_apart) controls.missed.push_back(fmt::format("that must be told apart {}", none));
  if (!any_beyond) controls.missed.push_back(fmt::format("that must be beyond half the margin {}", none));
  return controls;
}

/// Returns the distance of the outputs over the trunks; null if any trunk lacks it.
std::optional<CardOutputs> outputs_of(const std::vector<const Fidelity*>& trunks) {
  std::vector<const OutputDistance*> measurements;
  for (const Fidelity* trunk : trunks) measurements.push_back(trunk->outputs ? &*trunk->outputs : nullptr);
  const auto distance = output_means(measurements);
  if (!distance) return std::nullopt;
  CardOutputs all{*distance, 0, true};
  for (const OutputDistance* one : measurements) {
    all.tokens += static_cast<double>(one->tokens);
    all.held_out = all.held_out && one->held_out;
  }
  return all;
}

/// Returns gradient fidelity by age: means over the trunks, without stress. Skips incomplete measurements.
std::vector<CardFidelity> fidelity_of(const StudyCells& cells) {
  std::map<std::int64_t, std::vector<const Fidelity*>> by_age;
  for (const auto& [cell, record] : cells)
    for (const Fidelity& one : record->fidelity)
      if (one.stress == "none" && one.whole.error.mean && one.whole.cosine.mean && one.whole.bias.mean)
        by_age[cell.age].push_back(&one);
  std::vector<CardFidelity> fidelity;
  for (const auto& [age, trunks] : by_age) {
    CardFidelity mean;
    mean.age = age;
    std::vector<double> flips;  // older rows have none
    const auto count = static_cast<double>(trunks.size());
    for (const Fidelity* one : trunks) {
      mean.error += *one->whole.error.mean / count;
      mean.cosine += *one->whole.cosine.mean / count;
      mean.bias += *one->whole.bias.mean / count;
      if (one->route_flips) flips.push_back(one->route_flips->all);
    }
    if (!flips.empty()) mean.route_flips = mean_and_spread(flips).mean;
    mean.outputs = outputs_of(trunks);
    fidelity.push_back(mean);
  }
  return fidelity;
}

std::vector<CardLayer> layers_of(const StudyCells& cells) {
  std::int64_t oldest = 0;
  for (const auto& [cell, record] : cells) oldest = std::max(oldest, cell.age);
  std::map<std::size_t, std::pair<std::vector<double>, std::vector<double>>> values;  // errors and biases
  for (const auto& [cell, record] : cells) {
    if (cell.age != oldest || record->fidelity.empty() || record->fidelity.front().stress != "none") continue;
    const std::vector<GradientFidelity>& layers = record->fidelity.front().layers;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (!layers[i].error || !layers[i].bias) continue;
      values[i].first.push_back(*layers[i].error);
      values[i].second.push_back(*layers[i].bias);
    }
  }
  std::vector<CardLayer> result;
  for (const auto& [layer, pair] : values)
    result.push_back({static_cast<std::int64_t>(layer), mean_and_spread(pair.first).mean,
                      mean_and_spread(pair.second).mean});
  return result;
}

std::vector<StepDifference> curve_of(const StudyRows& rows, const std::string& recipe) {
  constexpr std::size_t kPoints = 10;
  std::map<std::size_t, std::map<std::int64_t, std::vector<double>>> differences;  // by last step and trunk
  for (const auto& [cell, record, reference] : rows.pairs(StudyPart::fork, recipe)) {
    if (!trailing_loss(record) || !trailing_loss(reference)) continue;
    const std::vector<double>&ours = record.training->loss, &theirs = reference.training->loss;
    const std::size_t steps = std::min(ours.size(), theirs.size());
    for (std::size_t k = 0; k < kPoints; ++k) {
      const std::size_t begin = steps * k / kPoints, end = steps * (k + 1) / kPoints;
      double sum = 0;
      for (std::size_t i = begin; i < end; ++i) sum += ours[i] - theirs[i];
      if (end > begin) differences[end][cell.trunk].push_back(sum / static_cast<double>(end - begin));
    }
  }
  std::vector<StepDifference> curve;
  for (const auto& [step, trunks] : differences) {
    std::vector<double> means;
    for (const auto& [trunk, values] : trunks) means.push_back(mean_and_spread(values).mean);
    if (const auto interval = mean_with_interval(means))
      curve.push_back({static_cast<double>(step), *interval});
  }
  return curve;
}

/// Returns the mean of one trunk's forks, truncated to the shortest.
std::vector<double> mean_course(const std::vector<std::vector<double>>& forks) {
  std::vector<double> mean = forks.front();
  for (const std::vector<double>& fork : forks) mean.resize(std::min(mean.size(), fork.size()));
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (const std::vector<double>& fork : forks) sum += fork[i];
    mean[i] = sum / static_cast<double>(forks.size());
  }
  return mean;
}

/// Returns the loss gap at the switch at one age from the probes of each trunk's initial state; null if they lack it.
std::optional<SwitchGap> probed_switch(const std::vector<const Fidelity*>& probes) {
  std::vector<double> means;
  double squares = 0, freedom = 0;  // squared errors of the means over the batches, and their
                                    // degrees of freedom
  for (const Fidelity* probe : probes) {
    const MeanInterval& difference = probe->loss_difference;
    if (!difference.mean) return std::nullopt;
    means.push_back(*difference.mean);
    if (!difference.low || !difference.high || probe->batches < 2) continue;
    const double trunk_freedom = static_cast<double>(probe->batches - 1);
    const double error = (*difference.high - *difference.low) / 2 / student_t_quantile(0.975, trunk_freedom);
    squares += error * error, freedom += trunk_freedom;
  }
  if (means.empty()) return std::nullopt;
  const double mean = mean_and_spread(means).mean;
  if (means.size() >= std::size_t{kFewestUnits}) {
    const MeanWithInterval interval = *mean_with_interval(means);
    return SwitchGap{mean, interval.low, interval.high, SwitchGap::Source::trunks};
  }
  SwitchGap gap{mean, {}, {}, SwitchGap::Source::batches};
  if (freedom > 0) {
    const double half =
        student_t_quantile(0.975, freedom) * std::sqrt(squares) / static_cast<double>(means.size());
    gap.low = mean - half, gap.high = mean + half;
  }
  return gap;
}

/// Returns the loss gap at the switch from the forks' first step, whose loss precedes any update.
std::optional<SwitchGap> first_step_switch(const std::vector<std::vector<double>>& courses) {
  std::vector<double> first;
  for (const std::vector<double>& course : courses)
    if (!course.empty() && std::isfinite(course.front())) first.push_back(course.front());
  if (first.empty()) return std::nullopt;
  SwitchGap gap{mean_and_spread(first).mean, {}, {}, SwitchGap::Source::first_step};
  if (const auto interval = mean_with_interval(first)) gap.low = interval->low, gap.high = interval->high;
  return gap;
}

/// Held-out losses of forks minus those of BF16's, by trunk.
struct HeldOutDifferences {
  std::map<std::int64_t, std::vector<double>> in_recipe, in_bf16;

  void add(std::int64_t trunk, const Record& fork, const Record& reference) {
    if (fork.training->evaluations.empty() || reference.training->evaluations.empty()) return;
    const Evaluation &ours = fork.training->evaluations.back(),
                     &theirs = reference.training->evaluations.back();
    if (ours.step != theirs.step || !theirs.loss) return;
    if (ours.loss) in_recipe[trunk].push_back(*ours.loss - *theirs.loss);
    if (ours.bf16_loss) in_bf16[trunk].push_back(*ours.bf16_loss - *theirs.loss);
  }

  /// Returns null if any of `trunks` trunks lacks held-out losses: the card has one interval, over all trunks.
  static std::optional<MeanWithInterval> over_trunks(
      const std::map<std::int64_t, std::vector<double>>& by_trunk, std::size_t trunks) {
    if (by_trunk.size() < trunks) return std::nullopt;
    std::vector<double> means;
    for (const auto& [trunk, differences] : by_trunk) means.push_back(mean_and_spread(differences).mean);
    return mean_with_interval(means);
  }
};

/// Returns the loss gap at the switch and course by age. `bf16_losses`: mean loss of BF16's forks by age, nats. `small`: largest
/// change along the fork that does not matter, as a fraction of that loss.
std::vector<CardGaps> gaps_of(const StudyRows& rows, const std::string& recipe,
                              const std::map<std::int64_t, double>& bf16_losses, double small) {
  std::map<std::int64_t, std::vector<const Fidelity*>> probes;
  // by age and trunk: one fork per data seed
  std::map<std::int64_t, std::map<std::int64_t, std::vector<std::vector<double>>>> forks;
  std::map<std::int64_t, HeldOutDifferences> held_out;
  for (const auto& [cell, record] : rows.of(StudyPart::fork, recipe))
    for (const Fidelity& one : record->fidelity)
      if (one.stress == "none") probes[cell.age].push_back(&one);
  for (const auto& [cell, record, reference] : rows.pairs(StudyPart::fork, recipe)) {
    if (!trailing_loss(record) || !trailing_loss(reference)) continue;
    const std::vector<double>&ours = record.training->loss, &theirs = reference.training->loss;
    std::vector<double>& fork = forks[cell.age][cell.trunk].emplace_back();
    for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
      fork.push_back(ours[i] - theirs[i]);
    held_out[cell.age].add(cell.trunk, record, reference);
  }
  std::vector<CardGaps> gaps;
  for (const auto& [age, trunks] : forks) {
    std::vector<std::vector<double>> courses;
    for (const auto& [trunk, own] : trunks) courses.push_back(mean_course(own));
    CardGaps& at_age = gaps.emplace_back();
    at_age.age = age;
    at_age.tokens_per_parameter = rows.tokens_per_parameter(age);
    at_age.bf16_loss = bf16_losses.at(age);
    if (const auto probe = probes.find(age); probe != probes.end())
      at_age.at_switch = probed_switch(probe->second);
    if (!at_age.at_switch) at_age.at_switch = first_step_switch(courses);
    at_age.course = fit_course(courses, small * at_age.bf16_loss);
    at_age.held_out = HeldOutDifferences::over_trunks(held_out[age].in_recipe, trunks.size());
    at_age.held_out_in_bf16 = HeldOutDifferences::over_trunks(held_out[age].in_bf16, trunks.size());
  }
  return gaps;
}

/// Fits the loss gaps of every trunk over the tokens per parameter that its model had seen. Leaves out ages that forks of
/// `fork_steps` steps change by more than kLongestFork. `bf16_losses`: mean loss of BF16's forks by age, nats.
std::optional<CardAgeLaw> age_law_of(const StudyRows& rows, const ForkEvidence& evidence,
                                     std::int64_t fork_steps,
                                     const std::map<std::int64_t, double>& bf16_losses) {
  std::vector<AgedGap> gaps, shares;
  std::set<double> ages;
  for (const AgeDifferences& one : evidence.ages) {
    const auto age = rows.tokens_per_parameter(one.age);
    if (!age || *age <= 0) return std::nullopt;
    if (*rows.tokens_per_parameter(one.age + fork_steps) > (1 + kLongestFork) * *age) continue;
    ages.insert(*age);
    for (const auto& [trunk, differences] : one.by_trunk) {
      const double gap = mean_and_spread(differences).mean;
      gaps.push_back({trunk, *age, gap});
      shares.push_back({trunk, *age, gap / bf16_losses.at(one.age)});
    }
  }
  auto law = fit_age_law(gaps), share = fit_age_law(shares);
  if (!law || !share) return std::nullopt;
  CardAgeLaw result{std::move(*law), std::move(*share), *ages.begin(), *ages.rbegin(), {}, {}};
  const auto forecast = [&](std::vector<AgedGap> all) -> std::optional<MeanWithInterval> {
    std::erase_if(all, [&](const AgedGap& one) { return one.tokens_per_parameter == result.oldest; });
    const auto younger = fit_age_law(all);
    return younger ? std::optional(younger->at(result.oldest)) : std::nullopt;
  };
  result.forecast = forecast(std::move(gaps)), result.share_forecast = forecast(std::move(shares));
  return result;
}

/// Compares every recipe with the incumbent, which must be one of the cards. `judge`: judge_forks with the
/// study's controls and rules.
template <class Judge>
void add_contrasts(std::vector<StudyCard>& cards, const StudyRows& rows, const Judge& judge) {
  const std::string& incumbent = *rows.against;
  if (!rows.asked.contains(incumbent)) return;
  std::vector<ForkEvidence> evidence;
  std::vector<StudyCard*> compared;
  for (StudyCard& card : cards) {
    if (card.verdict.recipe == incumbent) continue;
    evidence.push_back(evidence_against(rows, card.verdict.recipe, incumbent));
    compared.push_back(&card);
  }
  std::vector<ForkVerdict> verdicts = judge(evidence);
  for (std::size_t i = 0; i < compared.size(); ++i) {
    for (const std::string& recipe : {verdicts[i].recipe, incumbent})
      if (const auto why = fork_unsupported_reason(rows, recipe))
        verdicts[i].reason = fmt::format("{} does not run here: {}", recipe, *why);
    compared[i]->contrast = {incumbent, std::move(verdicts[i])};
  }
}

/// Returns the recipes that take over during a fork; those that a damaged record does not name are left out.
std::vector<CardChange> changes_of(const Record& fork) {
  if (!fork.definition || !fork.definition->recipe) return {};
  std::vector<CardChange> changes;
  for (const auto& part : fork.definition->recipe->value("schedule", nlohmann::ordered_json::array())) {
    const auto from = part.find("from"), name = part.find("name");
    if (from == part.end() || name == part.end() || !from->is_number_integer() || !name->is_string())
      continue;
    changes.push_back({from->get<std::int64_t>(), name->get<std::string>()});
  }
  return changes;
}

std::vector<StudyCard> cards_of(const StudyRows& rows) {
  std::map<std::int64_t, std::vector<double>> by_age;
  std::vector<double> losses;
  std::size_t steps = 0;
  for (const auto& [cell, record] : rows.of(StudyPart::fork, "bf16"))
    if (const auto loss = trailing_loss(*record)) {
      losses.push_back(*loss), by_age[cell.age].push_back(*loss);
      steps = std::max(steps, record->training->loss.size());
    }
  if (losses.empty() || rows.asked.empty()) return {};
  StudyCard common;
  common.model = rows.model, common.machine = rows.machine, common.study = rows.study;
  common.bf16_loss = mean_and_spread(losses).mean;
  common.fork_steps = static_cast<std::int64_t>(steps);
  common.trained_tokens = rows.trained_tokens, common.steady = rows.steady;
  std::map<std::int64_t, double> bf16_losses;
  ForkRules rules{.margin = rows.margin * common.bf16_loss, .level = rows.level};
  for (const auto& [age, own] : by_age) {
    bf16_losses[age] = mean_and_spread(own).mean;
    rules.margins[age] = rows.margin * bf16_losses[age];
  }
  common.margin_fraction = rows.margin, common.margin = rules.strictest();
  const ForkEvidence neutral = evidence_of(rows, "bf16", rows.perturbed);
  common.floor = noise_floor(neutral);
  // All forks of a ladder have one age.
  const auto ladder_margin = [&](StudyPart part, const std::string& recipe) {
    const StudyCells& cells = rows.of(part, recipe);
    return cells.empty() ? rules.margin : rules.margin_at(cells.begin()->first.age);
  };
  common.bf16_learning_rate = bf16_rates(rows, ladder_margin(StudyPart::learning_rate, "bf16"));
  const Controls controls = controls_of(rows, rules);
  common.controls = controls.results;
  std::vector<ForkEvidence> asked;
  for (const std::string& recipe : rows.asked) asked.push_back(evidence_of(rows, recipe));
  const NoiseFloor floor{common.floor, trunks_to_quiet(neutral, rules)};
  const auto judge = [&](const std::vector<ForkEvidence>& evidence) {
    return judge_forks(evidence, std::vector(evidence.size(), floor), controls.run, controls.missed, rules);
  };
  std::vector<StudyCard> cards;
  std::vector<ForkVerdict> verdicts = judge(asked);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    ForkVerdict& verdict = verdicts[i];
    const std::string recipe = verdict.recipe;
    if (const auto why = fork_unsupported_reason(rows, recipe))
      verdict.reason = "it does not run here: " + *why;
    StudyCard& card = cards.emplace_back(common);
    card.verdict = std::move(verdict);
    const StudyCells& cells = rows.of(StudyPart::fork, recipe);
    card.fork = typical_fork(cells);
    if (card.fork) card.changes = changes_of(*card.fork);
    card.gaps = gaps_of(rows, recipe, bf16_losses, rows.margin / 2);
    card.age_law = age_law_of(rows, asked[i], common.fork_steps, bf16_losses);
    card.fidelity = fidelity_of(cells), card.layers = layers_of(cells), card.curve = curve_of(rows, recipe);
    card.outlier_ffn = outlier_ladder(rows, recipe, "ffn");
    card.outlier_norm = outlier_ladder(rows, recipe, "norm");
    card.outlier_vo = outlier_ladder(rows, recipe, "vo");
    const auto ladder = [&](StudyPart part) {
      return loss_ladder(rows, part, recipe, ladder_margin(part, recipe));
    };
    card.learning_rate = ladder(StudyPart::learning_rate), card.batch = ladder(StudyPart::batch);
    card.bits = ladder(StudyPart::bits), card.exponent_bits = ladder(StudyPart::exponent_bits);
  }
  std::vector<std::optional<Deployment>> deployments =
      judge_deployments(rows, {rows.asked.begin(), rows.asked.end()}, controls.run, controls.missed);
  for (std::size_t i = 0; i < cards.size(); ++i) cards[i].deployment = std::move(deployments[i]);
  if (rows.against) add_contrasts(cards, rows, judge);
  return cards;
}

/// Makes `recipe` the incumbent of every study. Throws InvalidInput if none of them judges it beside others.
void name_incumbent(std::vector<StudyRows>& studies, const std::string& recipe) {
  std::set<std::string> known;
  bool compared = false;
  for (StudyRows& rows : studies) {
    rows.against = recipe;
    known.insert(rows.asked.begin(), rows.asked.end());
    compared = compared || (rows.asked.contains(recipe) && rows.asked.size() > 1);
  }
  if (compared) return;
  const std::vector<std::string> names(known.begin(), known.end());
  throw InvalidInput(known.empty() ? std::string("--against: these records are of no study")
                     : known.contains(recipe)
                         ? fmt::format("--against: no study here compares {} with another recipe", recipe)
                         : fmt::format("--against: no study here judges \"{}\"; they judge {}", recipe,
                                       fmt::join(names, ", ")));
}

}  // namespace

const char* name_of(SwitchGap::Source source) {
  static constexpr const char* kNames[] = {"trunks", "batches", "first_step"};
  return kNames[static_cast<int>(source)];
}

std::optional<MeanWithInterval> loss_gap_at(const StudyCard& card, std::int64_t age) {
  const AgeInterval* found = find_age(card.verdict, age);
  return found ? found->difference : std::nullopt;
}

std::optional<MeanWithInterval> share_at(const StudyCard& card, const CardGaps& at_age) {
  return ratio_to(loss_gap_at(card, at_age.age), at_age.bf16_loss);
}

const AgeInterval* find_age(const ForkVerdict& verdict, std::int64_t age) {
  const auto found = std::find_if(verdict.by_age.begin(), verdict.by_age.end(),
                                  [&](const AgeInterval& one) { return one.age == age; });
  return found == verdict.by_age.end() ? nullptr : &*found;
}

std::string age_words(const StudyCard& card) {
  std::vector<std::optional<double>> ages;
  for (const CardGaps& at_age : card.gaps) ages.push_back(at_age.tokens_per_parameter);
  return age_words(ages);
}

std::string outcome_words(const ForkVerdict& verdict) {
  const bool failed = verdict.outcome == ForkOutcome::worse || verdict.outcome == ForkOutcome::diverged;
  const PublishedLoss* failure = failed ? nullptr : known_failure(verdict.recipe);
  return (failure ? known_failure_words(*failure) + "; " : std::string()) + name_of(verdict.outcome);
}

std::string verdict_words(const StudyCard& card) {
  return fmt::format("{} for {} {}", outcome_words(card.verdict), card.model, age_words(card));
}

std::optional<std::string> change_words(const StudyCard& card) {
  if (card.changes.empty()) return std::nullopt;
  std::string words;
  for (const CardChange& change : card.changes)
    words += fmt::format("{}{} after step {}", words.empty() ? "" : ", ", change.recipe, change.after);
  return fmt::format(
      "{}: {} changes to {} of {}: its loss gap, course and trend include the steps that follow.", card.model,
      card.verdict.recipe, words, card.fork_steps);
}

std::string contrast_words(const StudyCard& card) {
  static constexpr const char* kNames[] = {"equivalent to", "worse than", "better than", "diverged, unlike",
                                           "inconclusive against"};
  const auto& [incumbent, verdict] = *card.contrast;
  return fmt::format("{} {} for {} {}", kNames[static_cast<int>(verdict.outcome)], incumbent, card.model,
                     age_words(card));
}

std::vector<StudyCard> study_cards(const RecordRefs& records, const std::optional<std::string>& against) {
  std::vector<StudyCard> cards;
  std::vector<StudyRows> studies = study_rows(records);
  if (against) name_incumbent(studies, *against);
  for (const StudyRows& rows : studies) {
    std::vector<StudyCard> more = cards_of(rows);
    cards.insert(cards.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return cards;
}

}  // namespace precbench
