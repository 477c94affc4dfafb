// Study sections: verdicts of a study's forks as table and text, and the stress at which each recipe breaks.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "kernels/base/plural.h"
#include "tools/analysis/equivalence.h"
#include "tools/analysis/token_cost.h"
#include "tools/report/sections.h"
#include "tools/report/study_figures.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

/// Returns a percentage at the oldest age, "6.40%".
template <class Share>
std::string percent(const StudyCard& card, Share CardFidelity::*member) {
  if (card.fidelity.empty()) return "-";
  const std::optional<double> share = card.fidelity.back().*member;
  return share ? fmt::format("{:.2f}%", 100 * *share) : "-";
}

/// Returns the loss of each rung minus BF16's, " (x0.1: +0.01653, x3: +0.01314)".
std::string rung_losses(const Ladder& ladder, const char* before) {
  std::string losses;
  for (const LadderRung& rung : ladder.rungs)
    if (rung.value)
      losses += fmt::format("{}{}{:g}: {:+.5f}", losses.empty() ? "" : ", ", before, rung.at, *rung.value);
  return losses.empty() ? "" : " (" + losses + ")";
}

/// Returns "holds 12, breaks 16", limited to the rungs that were run. Rung 0 of an outlier
/// ladder has no outliers.
std::string ladder_words(const Ladder& ladder, const char* before) {
  if (ladder.rungs.empty()) return "-";
  const double holds = ladder.holds().value_or(0);
  const std::optional<double> breaks = ladder.breaks();
  if (!breaks) return fmt::format("holds {}{:g}", before, holds);
  if (*breaks == 0) return fmt::format("above {:g}% without", 100 * kLargestGradientError);
  return holds != 0 ? fmt::format("holds {0}{1:g}, breaks {0}{2:g}", before, holds, *breaks)
                    : fmt::format("breaks {}{:g}", before, *breaks);
}

/// Returns a sentence on BF16's own ladder of learning rates, which limits those of the recipes.
std::string bf16_rate_words(const std::string& model, const Ladder& rates) {
  const std::optional<double> holds = rates.holds(), breaks = rates.breaks();
  if (!holds)
    return fmt::format(
        "BF16 itself is not stable on {} at {:g} times the fork's learning rate, so that this ladder says nothing.",
        model, *breaks);
  return fmt::format("BF16 itself is stable on {} at {:g} times the fork's learning rate, {}.", model, *holds,
                     breaks ? fmt::format("and not at {:g}", *breaks) : std::string("the highest tried"));
}

/// Returns a clause on the trend of the difference with the fork's length.
std::string trend_words(const ForkVerdict& verdict) {
  const auto& trend = verdict.trend;
  if (!trend) return "";
  if (trend->low > 0)
    return fmt::format("; it grows by {:.5f} with each doubling of the fork's length", trend->mean);
  if (trend->high < 0)
    return fmt::format("; it shrinks by {:.5f} with each doubling of the fork's length", -trend->mean);
  return "; no trend with the fork's length is seen";
}

std::string sentence(const StudyCard& card) {
  const ForkVerdict& verdict = card.verdict;
  return fmt::format("{}: {}: {}{}.", verdict.recipe, verdict_words(card), verdict.reason,
                     trend_words(verdict));
}

/// Returns "found (+0.04560)", with the control's loss minus BF16's, or why it was not: fewer trunks than a verdict
/// takes can find nothing.
std::string control_words(const ControlResult& control, int trunks) {
  if (!control.found) return "did not run";
  std::string words = "found";
  if (!*control.found)
    words = trunks < kFewestUnits ? fmt::format("not judged with {}", plural(trunks, "trunk")) : "NOT FOUND";
  return control.difference ? fmt::format("{} ({:+.5f})", words, *control.difference) : words;
}

/// Returns "rowwise_e5m2 apart from rowwise found (+0.04560), ...".
std::string controls_words(const StudyCard& card) {
  std::string words;
  for (const ControlResult& control : card.controls)
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", control.name,
                         control_words(control, card.verdict.trunks));
  return words.empty() ? "none" : words;
}

/// Returns sentences on the choice of the forks' age and on the tokens seen by the initial weights.
std::string start_words(const StudyCard& card) {
  std::string words;
  if (card.trained_tokens)
    words += fmt::format(" The trunks start from weights that had seen {} tokens.",
                         token_words(static_cast<double>(*card.trained_tokens)));
  if (card.steady)
    words += *card.steady ? " Forks begin at the first step from which BF16's loss is steady."
                          : " BF16's loss was still moving at the last saved step, where forks begin.";
  return words;
}

/// Returns "0.00497 to 0.00607": the margins of the ages.
std::string margins_words(const StudyCard& card) {
  double largest = card.margin;
  for (const CardGaps& at_age : card.gaps)
    largest = std::max(largest, card.margin_fraction * at_age.bf16_loss);
  const std::string low = fmt::format("{:.5f}", card.margin), high = fmt::format("{:.5f}", largest);
  return low == high ? low : low + " to " + high;
}

std::string setting_words(const StudyCard& card) {
  return fmt::format(
      "{} on {}: forks of {} steps from {}, BF16 at {:.4f} nats; margin {} nats, noise floor {}. Positive "
      "controls: {}.{}",
      card.model, card.machine, card.fork_steps, plural(card.verdict.trunks, "trunk"), card.bf16_loss,
      margins_words(card), card.floor ? fmt::format("{:.5f}", *card.floor) : "not measured",
      controls_words(card), start_words(card));
}

std::vector<Point> rungs_of(const Ladder& ladder) {
  std::vector<Point> points;
  for (const LadderRung& rung : ladder.rungs)
    if (rung.value) points.push_back({rung.at, {*rung.value}});
  return points;
}

std::vector<Point> layers_of(const StudyCard& card, double CardLayer::*member) {
  std::vector<Point> points;
  for (const CardLayer& one : card.layers) points.push_back({static_cast<double>(one.layer), {one.*member}});
  return points;
}

void add_difference_figures(const StudyFigures& figures) {
  const std::optional<double> floor = figures.cards.front().floor;
  figures.add(
      "difference",
      "Loss of a recipe's forks minus BF16's of the same state and data by tenths of the fork: mean over trunks and "
      "ages, with its 95% interval over the trunks. The band is the noise floor.",
      plot_number("bars", 1) + (floor ? plot_number("floor", *floor) : "") +
          study_axes("step of the fork", "loss minus that of bf16 (nats per token)"),
      [](const StudyCard& card) {
        std::vector<Point> points;
        for (const auto& [step, difference] : card.curve)
          points.push_back({step, {difference.mean, difference.low, difference.high}});
        return points;
      });
  figures.add("gradient-error", "Error of the gradient of each block against BF16's, at the oldest age.",
              study_axes("block", "relative error of the gradient"),
              [](const StudyCard& card) { return layers_of(card, &CardLayer::error); });
  figures.add("gradient-bias",
              "Bias of the gradient of each block, at the oldest age: below 0 the recipe shrinks it.",
              study_axes("block", "bias of the gradient"),
              [](const StudyCard& card) { return layers_of(card, &CardLayer::bias); });
}

void add_ladder_figures(const StudyFigures& figures) {
  const auto outliers = [&](const char* name, const char* where, Ladder StudyCard::*ladder) {
    figures.add(
        name,
        fmt::format(
            "Error of the gradient against BF16's while some channels of {} grow by a power of two and "
            "what reads them shrinks by the same: BF16's loss stays as it was.",
            where),
        plot_number("log_y", 1) + study_axes("exponent of two", "relative error of the gradient"),
        [=](const StudyCard& card) { return rungs_of(card.*ladder); });
  };
  outliers("outliers-ffn", "the FFN", &StudyCard::outlier_ffn);
  outliers("outliers-norm", "the norms", &StudyCard::outlier_norm);
  outliers("outliers-v", "V", &StudyCard::outlier_vo);
  figures.add("learning-rate",
              "Loss of a recipe's forks minus BF16's at the same learning rate, where BF16 is stable.",
              plot_number("log_x", 1) +
                  study_axes("factor of the learning rate", "loss minus that of bf16 (nats per token)"),
              [](const StudyCard& card) { return rungs_of(card.learning_rate); });
}

/// Returns the ages of these verdicts; only the oldest ones, to limit the table's width.
std::set<std::int64_t> ages_of(const std::vector<const ForkVerdict*>& verdicts) {
  constexpr std::size_t kMost = 12;
  std::set<std::int64_t> ages;
  for (const ForkVerdict* verdict : verdicts)
    for (const AgeInterval& one : verdict->by_age) {
      ages.insert(one.age);
      if (ages.size() > kMost) ages.erase(ages.begin());
    }
  return ages;
}

/// Adds a column for every age, and one for the trend with the fork's length. There is one verdict per row.
void add_differences(Table& table, const std::vector<const ForkVerdict*>& verdicts) {
  const std::set<std::int64_t> ages = ages_of(verdicts);
  int rank = kOrdinaryRank;  // the oldest age says most
  for (const std::int64_t age : ages)
    table.columns.push_back({fmt::format("after {} steps [95%], nats", age), false, false, ++rank});
  table.columns.push_back({"per doubling [95%]"});
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    const ForkVerdict& verdict = *verdicts[i];
    for (const std::int64_t age : ages) table.rows[i].push_back(difference_text(find_age(verdict, age)));
    table.rows[i].push_back(interval_or_dash(verdict.trend));
  }
}

/// Returns a table with one row per card and one column per age.
Table verdict_table(StudyCards cards) {
  Table table;
  table.columns = {{"model", true, false, kKeyRank},
                   {"recipe", true, false, kKeyRank},
                   {"verdict", true, false, kKeyRank, tone_of_verdict}};
  std::vector<const ForkVerdict*> verdicts;
  for (const StudyCard& card : cards) {
    verdicts.push_back(&card.verdict);
    table.rows.push_back({card.model, card.verdict.recipe,
                          fmt::format("{} {}", outcome_words(card.verdict), age_words(card))});
  }
  add_differences(table, verdicts);
  for (const char* name : {"gradient error", "bias"}) table.columns.push_back({name});
  const bool routed = std::any_of(cards.begin(), cards.end(), [](const StudyCard& card) {
    return !card.fidelity.empty() && card.fidelity.back().route_flips;
  });
  if (routed) table.columns.push_back({"route flips"});
  for (std::size_t i = 0; i < cards.size(); ++i) {
    std::vector<std::string>& row = table.rows[i];
    row.insert(row.end(), {percent(cards[i], &CardFidelity::error), percent(cards[i], &CardFidelity::bias)});
    if (routed) row.push_back(percent(cards[i], &CardFidelity::route_flips));
  }
  return table;
}

}  // namespace

Section study_section(const ReportInput& input) {
  Section section{"Does it train?", {}, {}, {}};
  const std::vector<StudyCard>& cards = input.cards;
  if (cards.empty()) return section;
  for_each_study(cards, [&](StudyCards study) {
    section.lines.push_back(setting_words(study.front()));
    for (const StudyCard& card : study) section.lines.push_back(sentence(card));
    for (const StudyCard& card : study)
      if (const auto words = change_words(card)) section.lines.push_back(*words);
    add_difference_figures({input, study, section.figures});
  });
  section.table = verdict_table(cards);
  section.notes = {
      "After steps: loss gap, the loss of the recipe's forks minus BF16's of the same state and data, by the trunk's steps before "
      "the fork; "
      "recipes compare within a column. The trunk is the unit of the interval. Gradient error and bias: against BF16's "
      "gradient of the same weights and tokens, at the oldest age. Behind a control: its loss minus BF16's at that age."};
  if (section.table->columns.back().title == "route flips")
    section.notes.push_back(
        "Route flips: slots that go to another expert than in BF16, of the same weights and tokens.");
  return section;
}

Section contrast_section(const ReportInput& input) {
  Section section{"Better than the incumbent?", {}, {}, {}};
  Table table;
  table.columns = {{"model", true, false, kKeyRank},
                   {"recipe", true, false, kKeyRank},
                   {"against", true, false, kKeyRank},
                   {"verdict", true, false, kKeyRank, tone_of_verdict}};
  std::vector<const ForkVerdict*> verdicts;
  for (const StudyCard& card : input.cards) {
    if (!card.contrast) continue;
    const auto& [incumbent, verdict] = *card.contrast;
    section.lines.push_back(fmt::format("{}: {}: {}{}.", verdict.recipe, contrast_words(card), verdict.reason,
                                        trend_words(verdict)));
    table.rows.push_back({card.model, verdict.recipe, incumbent, name_of(verdict.outcome)});
    verdicts.push_back(&verdict);
  }
  if (verdicts.empty()) return section;
  add_differences(table, verdicts);
  section.table = std::move(table);
  section.notes = {
      "After steps: loss of the recipe's forks minus the incumbent's of the same state and data. Margin, noise floor, controls "
      "and level are those of the verdicts against BF16. Holm's correction covers the comparisons with the incumbent; "
      "those with BF16 are corrected by themselves."};
  return section;
}

Section ladders_section(const ReportInput& input) {
  struct Shown {
    const char *title, *before;
    Ladder StudyCard::*ladder;
    bool of_losses = false;  ///< rungs are judged by their loss, not by the gradient's error
  };
  static constexpr Shown kShown[] = {{"outliers in FFN", "2^", &StudyCard::outlier_ffn},
                                     {"outliers in norms", "2^", &StudyCard::outlier_norm},
                                     {"outliers in V", "2^", &StudyCard::outlier_vo},
                                     {"learning rate", "x", &StudyCard::learning_rate, true},
                                     {"bits fewer", "-", &StudyCard::bits},
                                     {"exponent bits fewer", "-", &StudyCard::exponent_bits},
                                     {"sequences", "", &StudyCard::batch, true}};
  Section section{"How far from breaking?", {}, {}, {}};
  const std::vector<StudyCard>& cards = input.cards;
  Table table;
  table.columns = {{"model", true}, {"recipe", true}};
  for (const StudyCard& card : cards) table.rows.push_back({card.model, card.verdict.recipe});
  for (const Shown& column : kShown) {
    const auto climbs = [&](const StudyCard& card) { return !(card.*column.ladder).rungs.empty(); };
    if (std::none_of(cards.begin(), cards.end(), climbs)) continue;
    table.columns.push_back({column.title, true});
    for (std::size_t i = 0; i < cards.size(); ++i) {
      const Ladder& ladder = cards[i].*column.ladder;
      table.rows[i].push_back(ladder_words(ladder, column.before) +
                              (column.of_losses ? rung_losses(ladder, column.before) : ""));
    }
  }
  const bool climbed = table.columns.size() > 2;
  if (climbed)
    section.lines.push_back(fmt::format(
        "The highest rung at which a recipe holds, and the first at which it breaks: an outlier, when its gradient "
        "error is above {0:g}%, whatever it is without (of some it is above without any, on the trunks that climb); a learning rate or "
        "batch, when its loss is beyond the margin of BF16's at the same; a bit taken away, when its loss is beyond "
        "the margin. In parentheses: losses minus BF16's, nats.",
        100 * kLargestGradientError));
  for_each_study(cards, [&](StudyCards study) {
    if (const Ladder& rates = study.front().bf16_learning_rate; !rates.rungs.empty())
      section.lines.push_back(bf16_rate_words(study.front().model, rates));
    add_ladder_figures({input, study, section.figures});
  });
  if (climbed) section.table = std::move(table);
  return section;
}

}  // namespace precbench
