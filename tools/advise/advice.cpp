// Chooses the recipe. See advice.h.
#include "tools/advise/advice.h"

#include <algorithm>

#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

AdviceRow row_of(const SpeedRow& speed, const LossPrices& prices, const Advice& advice) {
  AdviceRow row{speed};
  if (speed.is_bf16()) {
    row.eligible = speed.fits;
    return row;
  }
  row.price = prices.at(speed.recipe, advice.run, advice.horizon);
  row.failure = known_failure(speed.recipe);
  row.diverged = prices.diverged(speed.recipe);
  if (speed.speedup && speed.speedup->low > 0) {
    row.break_even = break_even_interval(*speed.speedup, advice.slope.slope);
    if (row.price) row.equal_loss = equal_loss_speedup(*speed.speedup, row.price->gap, advice.slope.slope);
  }
  row.eligible = speed.fits && row.equal_loss && !row.failure && !row.diverged;
  return row;
}

/// Returns true if the price comes from a study of this model, or the recipe was studied on models of kYoungestLawAge
/// and older.
bool is_trained(const AdviceRow& row) { return row.price->measured || row.price->models > 0; }

/// Makes the choice for one number of tokens.
Advice choose(const SpeedTable& speeds, const LossPrices& prices, const PlannedRun& run, double horizon,
              const std::optional<HorizonSlope>& slope) {
  Advice advice;
  advice.speeds = speeds;
  advice.run = run;
  advice.horizon = horizon;
  if (run.parameters > 0) advice.loss = kBesiroglu2024.loss(run.parameters, horizon);
  advice.slope = slope ? *slope : slope_of_law(kBesiroglu2024, horizon);
  for (const SpeedRow& speed : speeds.rows) advice.rows.push_back(row_of(speed, prices, advice));
  const bool any_trained = std::any_of(advice.rows.begin(), advice.rows.end(), [](const AdviceRow& row) {
    return row.eligible && row.price && is_trained(row);
  });
  std::optional<std::size_t> bf16;
  bool any_fits = false;
  for (std::size_t i = 0; i < advice.rows.size(); ++i) {
    AdviceRow& row = advice.rows[i];
    any_fits = any_fits || row.speed.fits;
    row.eligible = row.eligible && (row.speed.is_bf16() || !any_trained || is_trained(row));
    if (!row.eligible) continue;
    if (row.speed.is_bf16())
      bf16 = i;
    else if (!advice.best || row.equal_loss->low > advice.rows[*advice.best].equal_loss->low)
      advice.best = i;
  }
  if (!any_fits)
    advice.status = kNothingFits;
  else if (!advice.best)
    advice.status = kNothingProven;
  else
    advice.pick = advice.rows[*advice.best].equal_loss->mean > 1 || !bf16 ? advice.best : bf16;
  return advice;
}

}  // namespace

std::optional<double> Advice::dollars(const SpeedRow& row) const {
  if (!price || !row.tokens_per_s) return std::nullopt;
  return *price * gpus() * 1e9 / *row.tokens_per_s / 3600;
}

std::optional<double> Advice::kilowatt_hours(const SpeedRow& row) {
  return row.joules_per_token ? std::optional(*row.joules_per_token * 1e9 / 3.6e6) : std::nullopt;
}

Advice make_advice(const SpeedTable& speeds, const LossPrices& prices, const PlannedRun& run,
                   const std::optional<HorizonSlope>& slope, std::optional<double> price) {
  Advice advice = choose(speeds, prices, run, run.tokens.value_or(kHorizons[0]), slope);
  advice.price = price;
  advice.largest_model = prices.law().largest_model();
  advice.law_models = prices.law().models(), advice.law_gaps = prices.law().gaps();
  if (run.tokens) return advice;
  for (const double tokens : kAdviceHorizons) {
    const Advice one = choose(speeds, prices, run, tokens, slope);
    if (!one.best || !one.pick) continue;
    const AdviceRow& best = one.rows[*one.best];
    advice.choices.push_back({tokens, one.rows[*one.pick].speed.recipe, best.speed.recipe, best.price->gap,
                              *best.equal_loss, best.break_even->mean});
  }
  return advice;
}

}  // namespace precbench
