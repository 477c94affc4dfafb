// Puts speed and loss gap together: which recipe pays, and what that rests on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/text/screen.h"
#include "tools/advise/speed_rows.h"
#include "tools/analysis/equal_loss.h"
#include "tools/analysis/horizon_slope.h"
#include "tools/law/expected_gaps.h"

namespace precbench {

struct AdviceRow {
  SpeedRow speed;
  std::optional<ExpectedGap> expected{};   ///< at the horizon; null: unproven, or BF16
  const PublishedLoss* failure = nullptr;  ///< a published run in which the recipe failed
  bool diverged = false;                   ///< in a study of the reader
  std::optional<MeanWithInterval> break_even{};  ///< gap at the horizon below which the recipe pays, nats
  std::optional<MeanWithInterval> equal_loss{};  ///< null without a loss gap
  /// Has a speed and a loss gap, fits, is not known to fail, did not diverge; and was studied on trained models, if any
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

/// Time, money and energy of the whole run.
struct RunCost {
  double days = 0, gpu_hours = 0;
  std::optional<double> dollars, kilowatt_hours;  ///< null: no price; no measured power
};

/// Another answer, and the change of the question that leads to it.
struct OtherAnswer {
  std::string change;  ///< "from 20T tokens", "if served in the recipe", "on B200"
  std::string recipe;
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
  std::vector<OtherAnswer> sensitivity;   ///< none: no change that was tried leads to another answer
  std::vector<std::string> tried;         ///< changes that were tried: "in either deployment", "on B200"
  int status = 0;                         ///< exit status of the command

  double gpus() const { return gpus_of(speeds.bf16_counts); }
  const SpeedRow* bf16() const;
  /// Returns the cost of training for the horizon's tokens; null without a speed.
  std::optional<RunCost> cost(const SpeedRow& row) const;
  /// Returns the hours that the recipe saves over BF16 to equal loss; null without a loss gap.
  std::optional<double> saved_hours(const AdviceRow& row) const;
  /// Cost and energy of a billion tokens; null if unknown.
  std::optional<double> dollars(const SpeedRow& row) const;
  static std::optional<double> kilowatt_hours(const SpeedRow& row);
};

/// Numbers of tokens for which the choice is shown where the run's is unknown.
inline constexpr double kAdviceHorizons[] = {100e9, 1e12, 5e12, 15e12};

/// Expected speed-up to equal loss from which a recipe is recommended: less is not worth another recipe's trouble.
inline constexpr double kWorthwhile = 1.05;

/// Time that a recipe has to save over BF16 to be recommended.
inline constexpr double kWorthwhileHours = 1;

/// Combines speeds and expected loss gaps. `slope`: from the reader's own runs; null: by a scaling law.
Advice make_advice(const SpeedTable& speeds, const ExpectedGaps& expected, const PlannedRun& run,
                   const std::optional<HorizonSlope>& slope, std::optional<double> price);

/// Returns the recipe that is recommended; empty if there is none.
std::string recommended(const Advice& advice);

/// Returns the advice for a terminal of 80 columns: the answer in at most 12 lines, tables, notes, and the commands that
/// measure. `measure`: those commands.
std::string advice_text(const Advice& advice, const std::vector<std::string>& measure,
                        const Screen& screen = {80, true});
nlohmann::ordered_json advice_json(const Advice& advice, const std::vector<std::string>& measure);

// Parts of the text, also in the JSON.
std::vector<std::string> headline(const Advice& advice);
std::vector<std::string> risks(const Advice& advice);

}  // namespace precbench
