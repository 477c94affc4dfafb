// Does a recipe still converge? Its loss curves beside BF16's, paired by seed: each pair had the same first
// weights and the same data, so that what differs is the recipe and the noise that it starts.
//
// All runs of a study are judged after as many steps as every one of them has done, by the mean loss of the
// trailing window (trailing_mean: the last tenth, 5 steps at least). The difference to BF16 is tested by
// Student's t over the seeds: equivalent if two one-sided tests (Schuirmann, 1987) put it inside a margin
// stated beforehand; worse or better if its interval excludes zero. Each verdict holds at its own level:
// among many recipes one in twenty may be called worse or better by chance.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis.h"

namespace precbench {

enum class ConvergenceVerdict : std::uint8_t {
  equivalent,
  better,
  worse,
  diverged,
  not_learning,
  inconclusive
};

/// "equivalent", ..., "not learning", "inconclusive"
const char* name_of(ConvergenceVerdict verdict);

/// The relative error of the EMA(0.9) loss below which DeepSeek-V3 (arXiv 2412.19437, section 3.3) and later
/// FP8 reports call a curve matched.
inline constexpr double kEmaTolerance = 0.0025;

struct ConvergenceRules {
  double margin = kEmaTolerance;  ///< a difference within this part of BF16's final loss counts as none
  double level = 0.05;            ///< chance of a wrong "equivalent", and of a wrong "better" or "worse"
};
/// Fewer seeds show no noise band, and settle nothing.
inline constexpr int kFewestSeeds = 3;

/// One run. A loss that is not finite ends its curve and makes it a diverged one.
struct LossCurve {
  std::string seed;          ///< runs of equal seed are paired
  std::vector<double> loss;  ///< nats, one a step
  bool diverged = false;     ///< the record's status says so
};

struct Interval {
  double low = 0, high = 0;
};

/// How far BF16's own seeds lie apart, by step: the mean of their EMA(0.9) curves, and where 95% of further
/// seeds would lie (prediction interval). Of at least kFewestSeeds seeds.
struct NoiseBand {
  int seeds = 0;
  std::vector<double> ema_mean, ema_low, ema_high;  ///< nats
};

/// One recipe's curves, or BF16's own.
struct RecipeConvergence {
  nlohmann::ordered_json fields;  ///< of the group's first row of this recipe: "recipe" and the rest
  RecordRefs members;             ///< runs with a loss curve, all seeds
  bool is_bf16 = false;
  std::size_t baseline = 0;  ///< index of the BF16 entry it is compared with; its own where there is none

  /// Null for BF16 unless it diverged or does not learn, and without BF16 runs to compare with.
  std::optional<ConvergenceVerdict> verdict;
  std::string reason;  ///< one line: what decided the verdict, or what is missing for one

  std::size_t steps = 0;                    ///< judged after; 0 where no curve that did not break is
  int seeds = 0;                            ///< curves that reached `steps`, paired where compared
  std::optional<double> final_loss;         ///< mean over those seeds of the trailing mean, nats
  std::optional<Interval> final_interval;   ///< 95%, of that mean; from 2 seeds on
  std::optional<double> margin;             ///< nats
  std::optional<double> delta;              ///< final loss minus BF16's, mean over the pairs, nats
  std::optional<Interval> delta_interval;   ///< 95%; from 2 pairs on
  std::optional<double> equivalence_p;      ///< the larger p of the two one-sided tests
  std::optional<double> ema_error_last;     ///< EMA(0.9) relative to BF16's minus 1, mean over the pairs
  std::optional<double> ema_error_largest;  ///< largest magnitude after the first tenth of the steps
  /// Whether those two are below kEmaTolerance; null where there is nothing to compare with.
  std::optional<bool> ema_last_within() const { return within(ema_error_last); }
  std::optional<bool> ema_all_within() const { return within(ema_error_largest); }
  std::optional<bool> in_noise_band;  ///< final_loss lies where 95% of further BF16 seeds would end
  /// Only if inconclusive: seeds in all with which this mean and spread would settle it.
  std::optional<int> seeds_to_settle;

  std::optional<double> excess_loss;        ///< final_loss above the source's known entropy, nats
  std::optional<double> tokens_to_target;   ///< until the EMA is within the margin of BF16's final loss
  std::optional<double> seconds_to_target;  ///< at the median step time; null for an emulated recipe
  std::optional<NoiseBand> band;            ///< of a BF16 entry with enough seeds

 private:
  static std::optional<bool> within(const std::optional<double>& error) {
    return error ? std::optional(std::abs(*error) < kEmaTolerance) : std::nullopt;
  }
};

/// What study_convergence needs of one side, without records: for tests, and for losses from elsewhere.
/// `uniform_loss`: ln V, if known. Fills everything but fields, members, excess_loss and the ways to the
/// target.
RecipeConvergence compare_curves(const std::vector<LossCurve>& recipe, const std::vector<LossCurve>& bf16,
                                 std::optional<double> uniform_loss, const ConvergenceRules& rules = {});

/// BF16 by itself: diverged, not learning, or no verdict; its noise band.
RecipeConvergence assess_bf16(const std::vector<LossCurve>& bf16, std::optional<double> uniform_loss);

/// Every recipe of a group, BF16 first, the others in the order of the rows. Runs that failed without a
/// diverging loss are left out. Empty if no run has enough steps.
std::vector<RecipeConvergence> study_convergence(const Group& group, const ConvergenceRules& rules = {});

/// The exponential moving average with weight 0.9 on the past, corrected for its start, so that the first
/// value is the first loss.
std::vector<double> ema(const std::vector<double>& loss);

}  // namespace precbench
