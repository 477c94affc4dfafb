// Chooses the recipe. See advice.h.
#include "tools/advise/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/model_age.h"
#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

AdviceRow row_of(const SpeedRow& speed, const ExpectedGaps& expected, const Advice& advice) {
  AdviceRow row{speed};
  if (speed.is_bf16()) {
    row.eligible = speed.fits;
    return row;
  }
  row.expected = expected.at(speed.recipe, advice.run, advice.horizon);
  row.failure = known_failure(speed.recipe);
  row.diverged = expected.diverged(speed.recipe);
  if (speed.speedup && speed.speedup->low > 0) {
    row.break_even = break_even_interval(*speed.speedup, advice.slope.slope);
    if (row.expected)
      row.equal_loss = equal_loss_speedup(*speed.speedup, row.expected->gap, advice.slope.slope);
  }
  row.eligible = speed.fits && row.equal_loss && !row.failure && !row.diverged;
  return row;
}

/// Returns true if the loss gap comes from a study of this model, or the recipe was studied on models of kYoungestLawAge
/// and older.
bool is_trained(const AdviceRow& row) { return row.expected->measured || row.expected->models > 0; }

std::size_t first_that_fits(const Advice& advice) {
  const auto first = std::find_if(advice.rows.begin(), advice.rows.end(), [](const AdviceRow& row) {
    return row.speed.fits && row.speed.tokens_per_s;
  });
  return static_cast<std::size_t>(first - advice.rows.begin());
}

/// Returns true if a recipe that fits has a speed, but no evidence of its loss.
bool has_unproven(const Advice& advice) {
  return std::any_of(advice.rows.begin(), advice.rows.end(), [](const AdviceRow& row) {
    return !row.speed.is_bf16() && row.speed.fits && row.speed.tokens_per_s && !row.expected &&
           !row.failure && !row.diverged;
  });
}

/// Returns true if the best recipe gains enough over BF16.
bool is_worthwhile(const Advice& advice) {
  const AdviceRow& best = advice.rows[*advice.best];
  return best.equal_loss->mean >= kWorthwhile &&
         advice.saved_hours(best).value_or(kWorthwhileHours) >= kWorthwhileHours;
}

/// A number of tokens at which the answer is another one.
struct Change {
  double tokens = 0;
  std::string recipe;
};

/// Numbers of tokens among which another answer is searched.
struct TokenRange {
  double low = 0, high = 0;
};

/// Returns a factor of 100 in either direction, but at least 1B and at most 100T tokens.
TokenRange range_around(double tokens) {
  constexpr double kLeast = 1e9, kMost = 1e14, kFar = 100;
  return {std::min(tokens, std::max(kLeast, tokens / kFar)),
          std::max(tokens, std::min(kMost, kFar * tokens))};
}

/// Returns the nearest number of tokens in range_around(tokens), to two digits, with another answer than `own`; null if there
/// is none.
template <typename Answer>
std::optional<Change> first_change(const std::string& own, double tokens, bool longer, const Answer& answer) {
  constexpr double kStep = 1.3;
  const TokenRange range = range_around(tokens);
  const auto rounded = [](double value) {
    const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
    return std::round(value / unit) * unit;
  };
  double same = tokens;
  for (double other = longer ? tokens * kStep : tokens / kStep;
       longer ? other <= range.high : other >= range.low; other = longer ? other * kStep : other / kStep) {
    if (answer(other) == own) {
      same = other;
      continue;
    }
    for (int i = 0; i < 8; ++i) {
      const double middle = std::sqrt(same * other);
      (answer(middle) == own ? same : other) = middle;
    }
    return Change{rounded(other), answer(other)};
  }
  return std::nullopt;
}

/// Makes the choice for one number of tokens.
Advice choose(const SpeedTable& speeds, const ExpectedGaps& expected, const PlannedRun& run, double horizon,
              const std::optional<HorizonSlope>& slope) {
  Advice advice;
  advice.speeds = speeds;
  advice.run = run;
  advice.horizon = horizon;
  if (run.parameters > 0) advice.loss = kBesiroglu2024.loss(run.parameters, horizon);
  advice.slope = slope ? *slope : slope_of_law(kBesiroglu2024, horizon);
  for (const SpeedRow& speed : speeds.rows) advice.rows.push_back(row_of(speed, expected, advice));
  const bool any_trained = std::any_of(advice.rows.begin(), advice.rows.end(), [](const AdviceRow& row) {
    return row.eligible && row.expected && is_trained(row);
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
  else if (speeds.part == TrainedPart::lora)
    advice.pick = first_that_fits(advice);
  else if (advice.best)
    advice.pick = !bf16 || is_worthwhile(advice) ? advice.best : bf16;
  else if (bf16 && advice.rows[*bf16].speed.tokens_per_s && !has_unproven(advice))
    advice.pick = bf16;
  else
    advice.status = kNothingProven;
  return advice;
}

/// Adds the numbers of tokens at which the answer changes, and the answer in the other deployment.
void find_other_answers(Advice& advice, const SpeedTable& speeds, const ExpectedGaps& expected,
                        const std::optional<HorizonSlope>& slope) {
  if (!advice.pick || speeds.part == TrainedPart::lora) return;
  const std::string own = recommended(advice);
  const auto answer = [&](double tokens, const PlannedRun& run) {
    return recommended(choose(speeds, expected, run, tokens, slope));
  };
  // The reader's own runs give the slope at one horizon alone.
  if (!slope) {
    const TokenRange range = range_around(advice.horizon);
    advice.tried.push_back(
        fmt::format("from {} to {} tokens", token_words(range.low), token_words(range.high)));
    for (const bool longer : {false, true})
      if (const auto at = first_change(own, advice.horizon, longer,
                                       [&](double tokens) { return answer(tokens, advice.run); }))
        advice.sensitivity.push_back(
            {fmt::format("{} {} tokens", longer ? "from" : "up to", token_words(at->tokens)), at->recipe});
  }
  advice.tried.emplace_back("in either deployment");
  PlannedRun other = advice.run;
  other.serving = other.serving == Serving::bf16 ? Serving::recipe : Serving::bf16;
  if (const std::string there = answer(advice.horizon, other); there != own && !there.empty())
    advice.sensitivity.push_back({fmt::format("if served in {}", served_words(other.serving)), there});
}

}  // namespace

const SpeedRow* Advice::bf16() const {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [](const AdviceRow& row) { return row.speed.is_bf16(); });
  return found == rows.end() ? nullptr : &found->speed;
}

std::optional<RunCost> Advice::cost(const SpeedRow& row) const {
  if (!row.tokens_per_s) return std::nullopt;
  const double hours = horizon / *row.tokens_per_s / 3600, billions = horizon / 1e9;
  RunCost cost{hours / 24, hours * gpus(), std::nullopt, std::nullopt};
  if (const auto one = dollars(row)) cost.dollars = *one * billions;
  if (const auto one = kilowatt_hours(row)) cost.kilowatt_hours = *one * billions;
  return cost;
}

std::optional<double> Advice::saved_hours(const AdviceRow& row) const {
  if (!row.speed.tokens_per_s || !row.speed.speedup || !row.equal_loss) return std::nullopt;
  const double base = horizon * row.speed.speedup->mean / *row.speed.tokens_per_s / 3600;
  return base * (1 - 1 / row.equal_loss->mean);
}

std::optional<double> Advice::dollars(const SpeedRow& row) const {
  if (!price || !row.tokens_per_s) return std::nullopt;
  return *price * gpus() * 1e9 / *row.tokens_per_s / 3600;
}

std::optional<double> Advice::kilowatt_hours(const SpeedRow& row) {
  return row.joules_per_token ? std::optional(*row.joules_per_token * 1e9 / 3.6e6) : std::nullopt;
}

std::string recommended(const Advice& advice) {
  return advice.pick ? advice.rows[*advice.pick].speed.recipe : "";
}

Advice make_advice(const SpeedTable& speeds, const ExpectedGaps& expected, const PlannedRun& run,
                   const std::optional<HorizonSlope>& slope, std::optional<double> price) {
  Advice advice = choose(speeds, expected, run, run.tokens.value_or(kHorizons[0]), slope);
  advice.price = price;
  advice.largest_model = expected.law().largest_model();
  advice.law_models = expected.law().models(), advice.law_gaps = expected.law().gaps();
  find_other_answers(advice, speeds, expected, slope);
  if (run.tokens || speeds.part == TrainedPart::lora) return advice;
  for (const double tokens : kAdviceHorizons) {
    const Advice one = choose(speeds, expected, run, tokens, slope);
    if (!one.best || !one.pick) continue;
    const AdviceRow& best = one.rows[*one.best];
    advice.choices.push_back({tokens, one.rows[*one.pick].speed.recipe, best.speed.recipe, best.expected->gap,
                              *best.equal_loss, best.break_even->mean});
  }
  return advice;
}

}  // namespace precbench
