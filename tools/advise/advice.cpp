// Chooses the recipe. See advice.h.
#include "tools/advise/advice.h"

#include <algorithm>

#include "tools/analysis/age_law.h"
#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

std::vector<BreakEven> break_even_of(const MeanWithInterval& speedup, const Advice& advice) {
  if (advice.run.tokens && advice.slope)
    return {{*advice.run.tokens, break_even_interval(speedup, advice.slope->slope)}};
  std::vector<BreakEven> gaps;
  for (const double tokens : kHorizons)
    gaps.push_back({tokens, break_even_interval(speedup, slope_of_law(kBesiroglu2024, tokens).slope)});
  return gaps;
}

AdviceRow row_of(const SpeedRow& speed, const StudyPrices& prices, const Advice& advice) {
  AdviceRow row{speed};
  if (speed.is_bf16()) {
    row.eligible = speed.fits;
    return row;
  }
  row.price = prices.nearest(speed.recipe, advice.run);
  if (row.price) row.other_side = prices.from_other_side(*row.price, advice.run);
  row.diverged = prices.diverged(speed.recipe);
  if (speed.speedup && speed.speedup->low > 0) {
    row.break_even = break_even_of(*speed.speedup, advice);
    if (row.price && advice.slope)
      row.equal_loss =
          equal_loss_speedup(*speed.speedup, row.price->gap_at(advice.run.loss), advice.slope->slope);
  }
  row.eligible = speed.fits && !row.break_even.empty() && row.price && !row.diverged;
  return row;
}

/// Returns the speed-up to equal loss. Without a horizon, at the first of kHorizons.
MeanWithInterval value_of(const AdviceRow& row, const Advice& advice) {
  const MeanWithInterval slope =
      advice.slope ? advice.slope->slope : slope_of_law(kBesiroglu2024, kHorizons[0]).slope;
  return equal_loss_speedup(*row.speed.speedup, row.price->gap_at(advice.run.loss), slope);
}

/// Finds the study nearest to the run, and rows whose own studies are far younger than it.
void compare_ages(Advice& advice) {
  for (const AdviceRow& row : advice.rows)
    if (row.eligible && row.price &&
        (!advice.reference ||
         distance_to(advice.run, *row.price) < distance_to(advice.run, *advice.reference)))
      advice.reference = row.price;
  for (AdviceRow& row : advice.rows) {
    if (!row.price || !advice.reference) continue;
    row.only_young =
        row.price->tokens_per_parameter * kSmallestAgeSpan < advice.reference->tokens_per_parameter;
    row.eligible = row.eligible && !row.only_young;
  }
}

}  // namespace

std::optional<double> Advice::dollars(const SpeedRow& row) const {
  if (!price || !row.tokens_per_s) return std::nullopt;
  return *price * gpus() * 1e9 / *row.tokens_per_s / 3600;
}

std::optional<double> Advice::kilowatt_hours(const SpeedRow& row) {
  return row.joules_per_token ? std::optional(*row.joules_per_token * 1e9 / 3.6e6) : std::nullopt;
}

Advice make_advice(SpeedTable speeds, const StudyPrices& prices, PlannedRun run,
                   std::optional<HorizonSlope> slope, std::optional<double> price) {
  Advice advice;
  advice.speeds = std::move(speeds);
  advice.run = run;
  if (run.parameters > 0)
    advice.run.loss = kBesiroglu2024.loss(run.parameters, run.tokens.value_or(kHorizons[0]));
  advice.slope = std::move(slope);
  advice.price = price;
  for (const SpeedRow& speed : advice.speeds.rows) advice.rows.push_back(row_of(speed, prices, advice));
  compare_ages(advice);
  std::optional<std::size_t> bf16;
  bool any_fits = false;
  for (std::size_t i = 0; i < advice.rows.size(); ++i) {
    const AdviceRow& row = advice.rows[i];
    any_fits = any_fits || row.speed.fits;
    if (!row.eligible) continue;
    if (row.speed.is_bf16())
      bf16 = i;
    else if (!advice.best || value_of(row, advice).low > value_of(advice.rows[*advice.best], advice).low)
      advice.best = i;
  }
  if (!any_fits) {
    advice.status = kNothingFits;
  } else if (!advice.best) {
    advice.status = kNothingProven;
  } else {
    advice.pick = value_of(advice.rows[*advice.best], advice).mean > 1 || !bf16 ? advice.best : bf16;
  }
  return advice;
}

}  // namespace precbench
