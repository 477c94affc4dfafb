// Chooses studies by size and age. See study_prices.h.
#include "tools/advise/study_prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "tools/analysis/numerics_label.h"
#include "tools/analysis/equivalence.h"
#include "tools/analysis/model_age.h"
#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

double ln_ratio(double a, double b) { return std::fabs(std::log(a / b)); }

}  // namespace

MeanWithInterval StudyPrice::gap_at(double loss) const {
  const double scale = loss / bf16_loss;
  return {gap.mean * scale, gap.low * scale, gap.high * scale};
}

StudyPrices::StudyPrices(const std::vector<StudyCard>& cards) {
  for (const StudyCard& card : cards) {
    if (!card.fork) continue;
    const std::string recipe = numerics_label(card.fork->case_fields);
    if (card.verdict.outcome == ForkOutcome::diverged) diverged_.push_back(recipe);
    const auto parameters = parameters_of(*card.fork);
    if (!parameters || card.verdict.trunks < kFewestUnits) continue;
    for (const CardPrice& price : card.prices) {
      const auto gap = settled_at(card, price.age);
      const auto age = price.tokens_per_parameter;
      if (gap && age && *age > 0 && price.bf16_loss > 0 && std::isfinite(gap->mean) &&
          std::isfinite(gap->low) && std::isfinite(gap->high))
        prices_.push_back(
            {&card, recipe, *parameters, *age, card.fork->moe.has_value(), *gap, price.bf16_loss});
    }
  }
}

const StudyPrice* StudyPrices::nearest(const std::string& recipe, const PlannedRun& run) const {
  const auto merit = [&](const StudyPrice& price) {
    return std::tuple(price.experts != run.experts, distance_to(run, price), price.gap.high - price.gap.low);
  };
  const StudyPrice* best = nullptr;
  for (const StudyPrice& price : prices_)
    if (price.recipe == recipe && (!best || merit(price) < merit(*best))) best = &price;
  return best;
}

const StudyPrice* StudyPrices::from_other_side(const StudyPrice& nearest, const PlannedRun& run) const {
  const auto age = run.tokens_per_parameter();
  if (!age) return nullptr;
  const bool older = nearest.tokens_per_parameter < *age;
  const StudyPrice* best = nullptr;
  for (const StudyPrice& price : prices_) {
    const bool is_older = price.tokens_per_parameter >= *age;
    if (price.recipe == nearest.recipe && price.experts == nearest.experts && is_older == older &&
        (!best || distance_to(run, price) < distance_to(run, *best)))
      best = &price;
  }
  return best;
}

bool StudyPrices::diverged(const std::string& recipe) const {
  return std::find(diverged_.begin(), diverged_.end(), recipe) != diverged_.end();
}

double distance_to(const PlannedRun& run, const StudyPrice& price) {
  const auto age = run.tokens_per_parameter();
  if (!age) return -price.tokens_per_parameter;
  return ln_ratio(price.tokens_per_parameter, *age) + ln_ratio(price.parameters, run.parameters);
}

std::optional<double> between(const StudyPrice& a, const StudyPrice& b, const PlannedRun& run) {
  const auto age = run.tokens_per_parameter();
  const double first = a.gap_at(run.loss).mean, second = b.gap_at(run.loss).mean;
  if (!age || !(first > 0) || !(second > 0) || a.tokens_per_parameter == b.tokens_per_parameter)
    return std::nullopt;
  const double exponent =
      std::log(second / first) / std::log(b.tokens_per_parameter / a.tokens_per_parameter);
  return first * std::pow(*age / a.tokens_per_parameter, exponent);
}

std::string study_words(const StudyPrice& price) {
  const std::string size = token_words(price.parameters) + " parameters", &model = price.card->model;
  return fmt::format("{} {}",
                     is_file_name(model) ? "a model of " + size : fmt::format("{} ({})", model, size),
                     age_words({price.tokens_per_parameter}));
}

}  // namespace precbench
