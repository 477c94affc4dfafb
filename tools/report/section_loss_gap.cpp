// Loss gap section: for each study card the loss gap at the switch and over the forks, the course between them, and the
// tokens that make up for the gap.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/model_age.h"
#include "tools/analysis/token_cost.h"
#include "tools/report/sections.h"
#include "tools/report/study_figures.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

constexpr const ScalingLaw& kLaw = kBesiroglu2024;

std::string switch_words(const std::optional<SwitchGap>& gap) {
  if (!gap) return "-";
  if (!gap->low || !gap->high) return fmt::format("{:+.5f}", gap->mean);
  return mean_text({gap->mean, *gap->low, *gap->high});
}

/// Returns "+0.01500 [+0.01460, +0.01540], above zero", or "none reached" if the course does not settle.
std::string plateau_words(const StudyCard& card, const CardGaps& at_age) {
  if (!at_age.course) return "-";
  if (!at_age.course->plateau)
    return at_age.course->shape == CourseShape::unclear ? "unclear" : "none reached";
  // A plateau below the noise floor is not reported as a difference.
  const bool above = at_age.course->above_zero() && at_age.course->plateau->mean > card.floor.value_or(0);
  return mean_text(*at_age.course->plateau) + (above ? ", above zero" : "");
}

/// Formats a factor: "1.03", "12.5", "1000 or more".
std::string factor_words(double factor) {
  if (!(factor < 1000)) return "1000 or more";
  return factor < 10 ? fmt::format("{:.2f}", factor) : fmt::format("{:.3g}", factor);
}

/// Returns "x1.03 [1.02, 1.04]", or "over x1000", also if no number of tokens makes up for the gap.
std::string tokens_words(const std::optional<MeanWithInterval>& gap, double tokens) {
  if (!gap) return "-";
  const double slope = kLaw.slope(tokens), factor = token_factor(gap->mean, slope);
  if (!(factor < 1000)) return "over x1000";
  return fmt::format("x{} [{}, {}]", factor_words(factor), factor_words(token_factor(gap->low, slope)),
                     factor_words(token_factor(gap->high, slope)));
}

/// Returns a sentence on the speedups whose break-even gap the margin exceeds.
std::string margin_words(const StudyCard& card) {
  std::string words;
  for (const double tokens : kHorizons)
    words += fmt::format("{}{}x at {} tokens", words.empty() ? "" : " and ",
                         factor_words(token_factor(card.margin, kLaw.slope(tokens))), token_words(tokens));
  return fmt::format(
      "{}: the margin of {:.5f} nats exceeds the break-even gap of any speed-up below {}. For such a speed-up, "
      "\"equivalent\" does not mean that the recipe pays.",
      card.model, card.margin, words);
}

/// Returns the break-even gaps of two hypothetical speedups.
std::string stated_speedups() {
  std::string words;
  for (const double tokens : kHorizons)
    for (const double speedup : kStatedSpeedups) {
      const auto [low, high] = break_even_range(tokens, speedup);
      words +=
          fmt::format("{}{:.4f} nats ({:g}x, {}; {:.4f} to {:.4f} by three laws)", words.empty() ? "" : ", ",
                      break_even_gap(kLaw.slope(tokens), speedup), speedup, token_words(tokens), low, high);
    }
  return words;
}

void add_figure(const StudyFigures& figures) {
  figures.add(
      "loss-gap",
      "Loss gap, the loss of the last half of a recipe's forks minus BF16's, by the age of the model: mean with its 95% interval "
      "over the trunks.",
      plot_number("bars", 1) + plot_number("log_x", 1) +
          study_axes("age (tokens per parameter)", "loss gap (nats per token)"),
      [](const StudyCard& card) {
        std::vector<Point> points;
        for (const CardGaps& at_age : card.gaps)
          if (const auto gap = loss_gap_at(card, at_age.age);
              gap && at_age.tokens_per_parameter && *at_age.tokens_per_parameter > 0)
            points.push_back({*at_age.tokens_per_parameter, {gap->mean, gap->low, gap->high}});
        return points.size() > 1 ? points : std::vector<Point>{};
      });
}

std::vector<std::string> row_of(const StudyCard& card, const CardGaps& at_age, bool with_held_out) {
  const auto gap = loss_gap_at(card, at_age.age);
  std::vector<std::string> row = {
      card.model,
      card.verdict.recipe,
      at_age.tokens_per_parameter ? ratio_words(*at_age.tokens_per_parameter) : "unknown",
      switch_words(at_age.at_switch),
      difference_text(find_age(card.verdict, at_age.age)),
      percent_text(share_at(card, at_age)),
      at_age.course ? name_of(at_age.course->shape) : "-",
      plateau_words(card, at_age)};
  if (with_held_out) {
    row.push_back(interval_or_dash(at_age.held_out));
    row.push_back(interval_or_dash(at_age.held_out_in_bf16));
  }
  for (const double tokens : kHorizons) row.push_back(tokens_words(gap, tokens));
  return row;
}

std::vector<std::string> notes(bool with_held_out) {
  std::vector<std::string> notes = {
      "Oldest age of each study; cards.json has all ages. Age: tokens per parameter, tokens that the model had seen when the forks "
      "began, its first weights' among them, over all parameters.",
      "At the switch: loss in the recipe minus loss in BF16 of the same weights, before any update. It answers what evaluating or "
      "continuing in the recipe costs at once. Loss gap: the same over the last half of the forks. It answers what "
      "remains when training goes on in the recipe. What a model costs that is trained in the recipe from its first step, "
      "neither says: that takes runs from scratch. Share of loss: the loss gap over the loss of BF16's forks.",
      "Course: falling or growing if the 95% interval of the last quarter of the steps minus the first tenth excludes zero; "
      "flat if it lies within half of the margin; else unclear. Plateau: where d(t) = plateau + amplitude x exp(-t / tau) "
      "leads, with its 95% interval over the trunks; none is reached if tau is longer than a third of the forks or if a "
      "logarithm of the step fits better.",
      fmt::format(
          "Tokens at a horizon: the factor (1 - beta gap / S)^(-1/beta) of the tokens that makes up for the loss gap, S = -dL/d ln(tokens) "
          "by {} ({}): {:.4f} nats at {} and {:.4f} at {} tokens, for any model size. It assumes that the gap at the horizon "
          "is the one measured here, and the text and tokenizer of that law. Break-even gap: S (1 - speed-up^-beta) / beta: {}.",
          kLaw.name, kLaw.source, kLaw.slope(kHorizons[0]), token_words(kHorizons[0]),
          kLaw.slope(kHorizons[1]), token_words(kHorizons[1]), stated_speedups())};
  if (with_held_out)
    notes.push_back(
        "Held-out: loss of --eval-data after the last step minus that of BF16's forks, over the trunks. In BF16: of the same "
        "weights (adapters) with everything else in BF16, so without the error of computing that loss in the recipe. Of a "
        "recipe that changes during the forks, both are in the last one.");
  return notes;
}

}  // namespace

Section loss_gap_section(const ReportInput& input) {
  Section section{"How large is the loss gap?", {}, {}, {}};
  if (input.cards.empty()) return section;
  Distinct lines;
  for_each_study(input.cards, [&](StudyCards study) {
    lines.add(margin_words(study.front()));
    for (const StudyCard& card : study)
      if (const auto words = change_words(card)) lines.add(*words);
    add_figure({input, study, section.figures});
  });
  section.lines = lines.texts;
  Table table;
  table.columns = {{"model", true},
                   {"recipe", true},
                   {"age, tokens per parameter"},
                   {"at the switch [95%], nats"},
                   {"loss gap [95%], nats"},
                   {"share of loss [95%]"},
                   {"course", true},
                   {"plateau [95%], nats"}};
  const bool with_held_out = std::any_of(input.cards.begin(), input.cards.end(), [](const StudyCard& card) {
    return !card.gaps.empty() && card.gaps.back().held_out;
  });
  if (with_held_out)
    for (const char* title : {"held-out [95%], nats", "held-out, in BF16 [95%], nats"})
      table.columns.push_back({title});
  for (const double tokens : kHorizons)
    table.columns.push_back({fmt::format("tokens at {} [95%]", token_words(tokens))});
  for (const StudyCard& card : input.cards)
    if (!card.gaps.empty()) table.rows.push_back(row_of(card, card.gaps.back(), with_held_out));
  if (table.rows.empty()) return {"How large is the loss gap?", {}, {}, {}};
  section.table = std::move(table);
  section.notes = notes(with_held_out);
  return section;
}

}  // namespace precbench
