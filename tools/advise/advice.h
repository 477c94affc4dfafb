// Puts speed and price in loss together: which recipe pays, and what that rests on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/text/screen.h"
#include "tools/advise/speed_rows.h"
#include "tools/advise/study_prices.h"
#include "tools/analysis/equal_loss.h"
#include "tools/analysis/horizon_slope.h"

namespace precbench {

/// Break-even gap at a number of tokens.
struct BreakEven {
  double tokens = 0;
  MeanWithInterval gap;  ///< nats
};

struct AdviceRow {
  SpeedRow speed;
  const StudyPrice* price = nullptr;       ///< nearest study; null: unproven, or BF16
  const StudyPrice* other_side = nullptr;  ///< nearest study on the other side of the run's age
  bool diverged = false;                   ///< in a study
  /// The price is of a model far younger than that of Advice::reference. Prices grew with age where that was
  /// studied, so it cannot be compared with the others.
  bool only_young = false;
  std::vector<BreakEven> break_even{};           ///< at the horizon, or at kHorizons if it is unknown
  std::optional<MeanWithInterval> equal_loss{};  ///< null without a horizon or a price
  bool eligible = false;  ///< has a speed, fits, a study near the run's age, and did not diverge
};

struct Advice {
  SpeedTable speeds;
  PlannedRun run;
  std::optional<HorizonSlope> slope;      ///< null without a horizon
  const StudyPrice* reference = nullptr;  ///< the study nearest to the run, of any recipe in the rows
  std::optional<double> price;            ///< per GPU hour
  std::vector<AdviceRow> rows;            ///< in the order of speeds.rows
  std::optional<std::size_t> pick;        ///< the recommended row
  /// The eligible row, not BF16, whose interval of the speed-up to equal loss (at kHorizons[0] without a horizon) has
  /// the highest lower end: a measured speed is preferred to a prediction that is hardly better.
  std::optional<std::size_t> best;
  int status = 0;  ///< exit status of the command

  double gpus() const { return gpus_of(speeds.bf16_counts); }
  /// Cost and energy of a billion tokens; null if unknown.
  std::optional<double> dollars(const SpeedRow& row) const;
  static std::optional<double> kilowatt_hours(const SpeedRow& row);
};

/// Combines speeds and prices in loss. `prices` must outlive the result.
Advice make_advice(SpeedTable speeds, const StudyPrices& prices, PlannedRun run,
                   std::optional<HorizonSlope> slope, std::optional<double> price);

/// Returns the advice for a terminal of 80 columns: headline, tables, risks, notes, the command that measures.
std::string advice_text(const Advice& advice, const Screen& screen = {80, true});
nlohmann::ordered_json advice_json(const Advice& advice);

// Parts of the text, also in the JSON.
std::vector<std::string> headline(const Advice& advice);
std::vector<std::string> risks(const Advice& advice);
/// Returns the sweep that measures BF16 and the best recipes in the advice's setting.
std::string measuring_command(const Advice& advice);

}  // namespace precbench
