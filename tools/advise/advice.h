// Puts speed and price in loss together: which recipe pays, and what that rests on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/text/screen.h"
#include "tools/advise/loss_prices.h"
#include "tools/advise/speed_rows.h"
#include "tools/analysis/equal_loss.h"
#include "tools/analysis/horizon_slope.h"

namespace precbench {

struct AdviceRow {
  SpeedRow speed;
  std::optional<LossPrice> price{};        ///< at the horizon; null: unproven, or BF16
  const PublishedLoss* failure = nullptr;  ///< a published run in which the recipe failed
  bool diverged = false;                   ///< in a study of the reader
  std::optional<MeanWithInterval> break_even{};  ///< gap at the horizon below which the recipe pays, nats
  std::optional<MeanWithInterval> equal_loss{};  ///< null without a price
  /// Has a speed and a price, fits, is not known to fail, did not diverge; and was studied on trained models, if any
  /// such recipe is eligible.
  bool eligible = false;
};

/// The best recipe at one number of tokens.
struct HorizonChoice {
  double tokens = 0;
  std::string recipe;                  ///< "bf16": none is expected to pay
  std::string best;                    ///< the best recipe beside BF16, whose numbers follow
  MeanWithInterval gap, equal_loss;
  double break_even = 0;
};

struct Advice {
  SpeedTable speeds;
  PlannedRun run;
  double horizon = 0;         ///< tokens for which the choice is made: those of the run, else kHorizons[0]
  double loss = 0;            ///< nats per token, of BF16 at the horizon, by a scaling law
  HorizonSlope slope;         ///< at the horizon
  double largest_model = 0;   ///< parameters; as the next two, of the law
  int law_models = 0, law_gaps = 0;
  std::optional<double> price;            ///< per GPU hour
  std::vector<AdviceRow> rows;            ///< in the order of speeds.rows
  std::optional<std::size_t> pick;        ///< the recommended row
  /// The eligible row, not BF16, whose interval of the speed-up to equal loss has the highest lower end: a measured
  /// speed is preferred to a prediction that is hardly better.
  std::optional<std::size_t> best;
  std::vector<HorizonChoice> choices;     ///< at kAdviceHorizons; empty if the run's tokens are known
  int status = 0;  ///< exit status of the command

  double gpus() const { return gpus_of(speeds.bf16_counts); }
  /// Cost and energy of a billion tokens; null if unknown.
  std::optional<double> dollars(const SpeedRow& row) const;
  static std::optional<double> kilowatt_hours(const SpeedRow& row);
};

/// Numbers of tokens for which the choice is shown where the run's is unknown.
inline constexpr double kAdviceHorizons[] = {100e9, 1e12, 5e12, 15e12};

/// Combines speeds and prices in loss. `slope`: from the reader's own runs; null: by a scaling law.
Advice make_advice(const SpeedTable& speeds, const LossPrices& prices, const PlannedRun& run,
                   const std::optional<HorizonSlope>& slope, std::optional<double> price);

/// Returns the advice for a terminal of 80 columns: headline, tables, risks, notes, the command that measures.
std::string advice_text(const Advice& advice, const Screen& screen = {80, true});
nlohmann::ordered_json advice_json(const Advice& advice);

// Parts of the text, also in the JSON.
std::vector<std::string> headline(const Advice& advice);
std::vector<std::string> risks(const Advice& advice);
/// Returns the sweep that measures BF16 and the best recipes in the advice's setting.
std::string measuring_command(const Advice& advice);

}  // namespace precbench
