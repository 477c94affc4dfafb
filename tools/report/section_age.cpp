// Age section: growth of a recipe's loss gap with the age of the model, its tokens per parameter. Shows the gap at
// every age as a share of BF16's loss, by which models with different tokenizers can be compared. For each recipe of a
// study with several ages it shows the power law, a test of that law, and its extrapolation to models of greater age.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tools/analysis/model_age.h"
#include "tools/report/sections.h"
#include "tools/report/study_figures.h"

namespace precbench {
namespace {

constexpr double kDecade = 10;

bool has_law(const StudyCard& card) { return card.age_law.has_value(); }

/// Returns "15m: the loss gap grows with age for mxfp8, nvfp4; no trend is shown for rowwise."
std::string growth_words(StudyCards study) {
  std::vector<std::string> growing, falling, unclear;
  for (const StudyCard& card : study) {
    if (!has_law(card)) continue;
    const MeanWithInterval exponent = card.age_law->share.exponent();
    (exponent.low > 0 ? growing : exponent.high < 0 ? falling : unclear).push_back(card.verdict.recipe);
  }
  std::string words;
  const auto add = [&](const std::vector<std::string>& recipes, const char* what) {
    if (!recipes.empty())
      words += fmt::format("{}{} for {}", words.empty() ? "" : "; ", what, fmt::join(recipes, ", "));
  };
  add(growing, "the loss gap as a share of BF16's loss grows with age");
  add(falling, "it falls with age");
  add(unclear, "no trend is shown");
  return fmt::format("{}: {}.", study.front().model, words);
}

/// Returns a sentence on a recipe's law, its test at the oldest age and its extrapolation.
std::string law_words(const StudyCard& card) {
  const CardAgeLaw& law = *card.age_law;
  std::string words =
      fmt::format("{}: the law from {} to {} tokens per parameter has an exponent of {}", card.verdict.recipe,
                  ratio_words(law.youngest), ratio_words(law.oldest), mean_text(law.share.exponent(), 2));
  if (const auto measured = share_at(card, card.gaps.back()); measured && law.share_forecast)
    words += fmt::format("; without its oldest age it forecasts {} there, and {} was measured",
                         percent_text(law.share_forecast), percent_text(measured));
  return words + fmt::format("; at 10 times the oldest age it gives {}.",
                             percent_text(law.share.at(kDecade * law.oldest)));
}

/// Returns a sentence that compares a model's loss gap with the law of another model; empty if the gap or the age is
/// unknown.
std::string beside_words(const StudyCard& fitted, const StudyCard& other) {
  const CardGaps& at_age = other.gaps.back();
  const auto measured = share_at(other, at_age);
  if (!measured || !at_age.tokens_per_parameter) return "";
  return fmt::format(
      "{}: the law of {}, extrapolated to {} tokens per parameter, gives {} of BF16's loss; {} was measured there at {}.",
      fitted.verdict.recipe, fitted.model, ratio_words(*at_age.tokens_per_parameter),
      percent_text(fitted.age_law->share.at(*at_age.tokens_per_parameter)), other.model,
      percent_text(measured));
}

void add_other_models(Section& section, const std::vector<StudyCard>& cards) {
  for (const StudyCard& fitted : cards)
    for (const StudyCard& other : cards) {
      if (!has_law(fitted) || has_law(other) || other.gaps.empty()) continue;
      if (other.model == fitted.model || other.verdict.recipe != fitted.verdict.recipe) continue;
      if (std::string words = beside_words(fitted, other); !words.empty())
        section.lines.push_back(std::move(words));
    }
}

std::vector<Point> measured_points(const StudyCard& card) {
  std::vector<Point> points;
  for (const CardGaps& at_age : card.gaps)
    if (const auto share = share_at(card, at_age);
        share && at_age.tokens_per_parameter && *at_age.tokens_per_parameter > 0)
      points.push_back(
          {*at_age.tokens_per_parameter, {100 * share->mean, 100 * share->low, 100 * share->high}});
  return points;
}

std::vector<Point> law_points(const CardAgeLaw& card, double to) {
  constexpr int kSteps = 60;
  std::vector<Point> points;
  for (int i = 0; i <= kSteps; ++i) {
    const double x = card.youngest * std::pow(to / card.youngest, static_cast<double>(i) / kSteps);
    points.push_back({x, {100 * card.share.at(x).mean}});
  }
  return points;
}

/// Adds one figure of all models, so that they can be compared. The second and third model use the line types
/// of a modified recipe.
void add_figure(Section& section, const ReportInput& input) {
  std::vector<std::string> models;
  std::vector<Series> series;
  double oldest = 0;
  for (const StudyCard& card : input.cards) {
    std::vector<Point> points = measured_points(card);
    if (points.empty()) continue;
    for (const Point& point : points) oldest = std::max(oldest, point.x);
    if (std::find(models.begin(), models.end(), card.model) == models.end()) models.push_back(card.model);
    const auto place = static_cast<int>(std::find(models.begin(), models.end(), card.model) - models.begin());
    series.push_back({card.verdict.recipe + ", " + card.model,
                      input.styles.at(card.verdict.recipe) + kRecipeStyles * (place % kModifierStyles),
                      std::move(points)});
  }
  std::string law_styles;
  std::vector<std::vector<Point>> laws;
  for (const StudyCard& card : input.cards) {
    if (!has_law(card)) continue;
    laws.push_back(law_points(*card.age_law, oldest));
    law_styles += fmt::format("{} ", input.styles.at(card.verdict.recipe));
  }
  section.figures.push_back(
      {"gap-over-age", "gap_over_age", fmt::format("{}", fmt::join(models, ", ")),
       "Loss gap in percent of BF16's loss, by age: mean with its 95% interval over the trunks; gaps not above zero are not "
       "shown. Lines: the fitted power laws, which beyond the oldest measured age of their model are extrapolations.",
       plot_series(series) + plot_text("law_styles", law_styles) + plot_curves("laws", laws)});
}

void add_rows(Table& table, const StudyCard& card) {
  for (const CardGaps& at_age : card.gaps) {
    const auto share = share_at(card, at_age);
    if (!share || !at_age.tokens_per_parameter) continue;
    table.rows.push_back({card.model, card.verdict.recipe, ratio_words(*at_age.tokens_per_parameter),
                          percent_text(share), mean_text(*loss_gap_at(card, at_age.age)),
                          fmt::format("{:.3f}", at_age.bf16_loss)});
  }
}

}  // namespace

Section age_section(const ReportInput& input) {
  Section section{"How does the loss gap grow with age?", {}, {}, {}};
  if (std::none_of(input.cards.begin(), input.cards.end(), has_law)) return section;
  Table table;
  table.columns = {{"model", true},         {"recipe", true},       {"age, tokens per parameter"},
                   {"share of loss [95%]"}, {"loss gap [95%], nats"}, {"BF16's loss, nats"}};
  for_each_study(input.cards, [&](StudyCards study) {
    for (const StudyCard& card : study) add_rows(table, card);
    if (std::none_of(study.begin(), study.end(), has_law)) return;
    section.lines.push_back(growth_words(study));
    for (const StudyCard& card : study)
      if (has_law(card)) section.lines.push_back(law_words(card));
  });
  add_other_models(section, input.cards);
  add_figure(section, input);
  section.table = std::move(table);
  section.notes = {
      "Age: tokens that the model had seen per parameter when the forks began. Loss gap: loss of the recipe's forks minus "
      "BF16's over the last half of the steps, per token; tokens of different tokenizers differ in length, so models compare by "
      "the share of BF16's loss.",
      fmt::format("Law: share of BF16's loss = scale x age^exponent, fitted to each trunk by itself by least squares; "
                  "means and intervals over the trunks, which do not contain the misfit of the law. An exponent of 0.30 doubles "
                  "the share with every tenfold of the tokens. Ages that a fork extends by more than a third are left out: their "
                  "gap belongs to no one age. A study whose ages span less than a factor of {:g} has no law.",
                  kSmallestAgeSpan),
      "Forecast: where the gap measured at the oldest age lies outside the forecast of the younger ages, the law does not hold, "
      "and what it says of older models is not to be relied on."};
  return section;
}

}  // namespace precbench
