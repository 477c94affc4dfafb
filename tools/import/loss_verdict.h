// Verdict on the final loss of a recipe's runs beside those of a reference, BF16: equivalent, worse, better or undecided, with its
// power. The run is the unit of every test: a curve of one run shows no spread between runs.
//
// Final loss: mean of the last tenth of the lines, at least five, up to the last step that all runs have logged. Runs of both arms
// with equal seeds are compared in pairs (Student's t), others as two samples (Welch's t). A recipe is equivalent if two one-sided
// tests at kLossLevel put the mean difference inside +-margin (tools/analysis/equivalence.h), and worse or better if it is
// not and the two-sided interval excludes zero. The margin is not halved as for forks, since the runs are judged where they ended.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "results/record/statistics.h"
#include "tools/import/run_arms.h"

namespace precbench {

inline constexpr double kLossLevel = 0.05;
/// Power at which a number of runs is called enough.
inline constexpr double kEnoughPower = 0.8;

enum class LossOutcome : std::uint8_t { equivalent, worse, better, diverged, undecided };
const char* name_of(LossOutcome outcome);

struct LossVerdict {
  std::string recipe, reference;
  LossOutcome outcome = LossOutcome::undecided;
  std::size_t runs = 0, reference_runs = 0;
  bool paired = false;
  std::int64_t step = 0;                     ///< at which the losses are compared
  std::optional<double> difference;          ///< recipe minus reference, nats; null without comparable curves
  std::optional<MeanWithInterval> interval;  ///< 95%; null for one run of each arm
  double margin = 0;                         ///< nats
  std::optional<double>
      power;  ///< probability that an equal recipe would be found equivalent with as many runs
  std::optional<int> runs_for_verdict;  ///< of each arm, for kEnoughPower; null: 1000 are not enough
  bool assumed_spread = false;          ///< the spread is that of committed repeats, as the runs show none
  std::string problem;                  ///< why nothing is compared; empty if it is
};

/// Returns the verdict on `arm`. `relative_margin`: of the reference's loss; `repeat_sd`: relative spread of a run's loss where
/// the runs show none.
LossVerdict judge_losses(const RunArm& reference, const RunArm& arm, double relative_margin,
                         double repeat_sd);

/// Returns the sentences that say so.
std::vector<std::string> loss_sentences(const LossVerdict& verdict);

/// Returns the probability that two one-sided tests at `level` call `count` pairs with no true difference and standard deviation
/// `sd` of a pair's difference equivalent within `margin`.
double equivalence_power(double sd, int count, double margin, double level);

}  // namespace precbench
