// Age section: growth of a recipe's price with training. For each recipe of a study with several ages, shows
// the power law in tokens per parameter, a test of that law, and its extrapolation to models trained for longer.
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

/// Returns "15m: the settled price grows with the tokens per parameter for mxfp8, nvfp4; no trend is shown for
/// rowwise."
std::string growth_words(StudyCards study) {
  std::vector<std::string> growing, falling, unclear;
  for (const StudyCard& card : study) {
    if (!has_law(card)) continue;
    const MeanWithInterval exponent = card.age_law->law.exponent();
    (exponent.low > 0 ? growing : exponent.high < 0 ? falling : unclear).push_back(card.verdict.recipe);
  }
  std::string words;
  const auto add = [&](const std::vector<std::string>& recipes, const char* what) {
    if (!recipes.empty())
      words += fmt::format("{}{} for {}", words.empty() ? "" : "; ", what, fmt::join(recipes, ", "));
  };
  add(growing, "the settled price grows with the tokens per parameter");
  add(falling, "it falls with them");
  add(unclear, "no trend is shown");
  return fmt::format("{}: {}.", study.front().model, words);
}

/// Returns a sentence that compares a model's measured price with the law of another model; empty if the price
/// or the age is unknown.
std::string beside_words(const StudyCard& fitted, const StudyCard& other) {
  const CardPrice& price = other.prices.back();
  const auto measured = settled_at(other, price.age);
  if (!measured || !price.tokens_per_parameter) return "";
  return fmt::format(
      "{}: the law of {}, extrapolated to {} tokens per parameter, gives {} nats; {} was measured there at {}.",
      fitted.verdict.recipe, fitted.model, ratio_words(*price.tokens_per_parameter),
      mean_text(fitted.age_law->law.at(*price.tokens_per_parameter)), other.model, mean_text(*measured));
}

void add_other_models(Section& section, const std::vector<StudyCard>& cards) {
  const std::size_t before = section.lines.size();
  for (const StudyCard& fitted : cards)
    for (const StudyCard& other : cards) {
      if (!has_law(fitted) || has_law(other) || other.prices.empty()) continue;
      if (other.model == fitted.model || other.verdict.recipe != fitted.verdict.recipe) continue;
      if (std::string words = beside_words(fitted, other); !words.empty())
        section.lines.push_back(std::move(words));
    }
  if (section.lines.size() > before)
    section.lines.push_back(
        "Nats are per token: prices of models with different tokenizers cannot be compared directly.");
}

std::vector<Point> measured_points(const StudyCard& card) {
  std::vector<Point> points;
  for (const CardPrice& price : card.prices)
    if (const auto gap = settled_at(card, price.age);
        gap && price.tokens_per_parameter && *price.tokens_per_parameter > 0)
      points.push_back({*price.tokens_per_parameter, {gap->mean, gap->low, gap->high}});
  return points;
}

std::vector<Point> law_points(const CardAgeLaw& card, double to) {
  constexpr int kSteps = 60;
  std::vector<Point> points;
  for (int i = 0; i <= kSteps; ++i) {
    const double x = card.youngest * std::pow(to / card.youngest, static_cast<double>(i) / kSteps);
    points.push_back({x, {card.law.at(x).mean}});
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
      {"price-over-age", "price_over_age", fmt::format("{}", fmt::join(models, ", ")),
       "Settled price by tokens per parameter: mean with its 95% interval over the trunks; prices not above zero are not "
       "shown. Lines: the fitted power laws, which "
       "beyond the oldest measured age of their model are extrapolations.",
       plot_series(series) + plot_text("law_styles", law_styles) + plot_curves("laws", laws)});
}

std::vector<std::string> row_of(const StudyCard& card) {
  const CardAgeLaw& law = *card.age_law;
  const auto measured = settled_at(card, card.prices.back().age);
  return {card.model,
          card.verdict.recipe,
          fmt::format("{} to {}", ratio_words(law.youngest), ratio_words(law.oldest)),
          mean_text(law.law.exponent(), 2),
          measured ? mean_text(*measured) : "-",
          law.forecast ? mean_text(*law.forecast) : "-",
          mean_text(law.law.at(kDecade * law.oldest))};
}

}  // namespace

Section age_section(const ReportInput& input) {
  Section section{"How does the price grow with training?", {}, {}, {}};
  if (std::none_of(input.cards.begin(), input.cards.end(), has_law)) return section;
  Table table;
  table.columns = {{"model", true},
                   {"recipe", true},
                   {"tokens per parameter"},
                   {"exponent [95%]"},
                   {"price at oldest [95%], nats"},
                   {"forecast [95%], nats"},
                   {"at 10 x oldest [95%], nats"}};
  for_each_study(input.cards, [&](StudyCards study) {
    if (std::none_of(study.begin(), study.end(), has_law)) return;
    section.lines.push_back(growth_words(study));
    for (const StudyCard& card : study)
      if (has_law(card)) table.rows.push_back(row_of(card));
  });
  add_other_models(section, input.cards);
  add_figure(section, input);
  section.table = std::move(table);
  section.notes = {
      "Law: settled price = scale x (tokens per parameter)^exponent, fitted to each trunk by itself by least squares in nats; "
      "means and intervals over the trunks. An exponent of 0.30 doubles the price with every tenfold of the tokens. Ages that "
      "a fork extends by more than a third are left out: its price belongs to no one age.",
      fmt::format(
          "Forecast: the price at the oldest age by the law of the younger ages alone. Where the measured price lies "
          "outside, the law does not hold, and what it says of longer training is not to be relied on. The last column "
          "is such an extrapolation. A study whose ages span less than a factor of {:g} has no law.",
          kSmallestAgeSpan)};
  return section;
}

}  // namespace precbench
