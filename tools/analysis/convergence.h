// Convergence verdict: loss curves of a recipe against BF16's, paired by seed. Each pair shares initial
// weights and data, so that only the recipe and the noise that it triggers differ.
//
// Runs are judged by the mean loss of the trailing window (trailing_mean: the last tenth, at least 5
// steps), provided that all are equally long and long enough for a recipe to show an effect. The difference
// to BF16 is tested by Student's t over the seeds. Equivalence is defined in equivalence.h, with seeds as
// units and the whole margin as the bound. Worse or better: the interval of the difference excludes zero. The
// level holds for each verdict separately: one recipe in twenty may be called worse or better by chance.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/analysis/analysis.h"
#include "tools/analysis/equivalence.h"

namespace precbench {

enum class ConvergenceVerdict : std::uint8_t {
  equivalent,
  better,
  worse,
  diverged,
  not_learning,
  inconclusive
};

/// Returns "equivalent", ..., "not learning", "inconclusive".
const char* name_of(ConvergenceVerdict verdict);

/// Relative error of the EMA(0.9) loss below which a curve counts as matched.
inline constexpr double kEmaTolerance = kMatchedLoss;

struct ConvergenceRules {
  double margin = kMatchedLoss;  ///< fraction of BF16's final loss below which a difference does not matter
  double level = 0.05;           ///< probability of a false "equivalent", and of a false "better" or "worse"
};
/// Minimum number of steps of a judged run. Early curves nearly coincide whatever the recipe, because initial
/// weights and data are equal: in results/cpu/convergence-tiny.jsonl.xz no EMA deviates from BF16's by more than
/// 0.22% in the first 40 steps, but some deviate by 1.2% in the first 60.
inline constexpr std::size_t kFewestJudgedSteps = 100;

/// Loss curve of one run. A non-finite loss ends the curve and makes the run diverged.
struct LossCurve {
  std::string seed;              ///< runs with equal seeds are paired
  std::span<const double> loss;  ///< nats, one value per step; its owner must outlive it
  bool diverged = false;         ///< according to the record's status
  std::size_t warmup = 0;        ///< steps until the learning rate first reaches its maximum
};

struct Interval {
  double low = 0, high = 0;
};

/// Spread of BF16's own seeds by step: the mean of their EMA(0.9) curves and the 95% prediction interval of a
/// further seed. Needs kFewestUnits seeds.
struct NoiseBand {
  int seeds = 0;
  std::vector<double> ema_mean, ema_low, ema_high;  ///< nats
};

/// Relative deviation of a recipe's EMA(0.9) curves from BF16's of the same seed: curve / BF16's - 1. Runs
/// count separately, because errors of opposite sign would cancel in a mean.
struct EmaErrors {
  double last = 0;     ///< at the last step, of the run that deviates most there
  double largest = 0;  ///< largest magnitude of any run after the first tenth of the steps
  int runs = 0;        ///< compared runs plus diverged ones, which never count as matched
  /// Number of these runs below kEmaTolerance at the last step, and at every step after the first tenth.
  int within_last = 0, within_throughout = 0;
};

/// Convergence of one recipe, or of BF16 itself.
struct RecipeConvergence {
  CaseFields fields;   ///< fields of the group's first row of this recipe
  RecordRefs members;  ///< runs with a loss curve, all seeds
  bool is_bf16 = false;
  std::size_t baseline = 0;  ///< index of the BF16 entry compared with; its own index if there is none

  /// Null for BF16 unless it diverged or does not learn, and if there are no BF16 runs to compare with.
  std::optional<ConvergenceVerdict> verdict;
  std::string reason;  ///< one line: reason of the verdict, or why there is none

  std::size_t steps = 0;                   ///< number of steps compared; 0 without a sound curve
  int seeds = 0;                           ///< number of curves that reached `steps`; of pairs, if compared
  std::optional<double> final_loss;        ///< trailing mean, averaged over those seeds, nats
  std::optional<Interval> final_interval;  ///< 95% interval of final_loss; null below 2 seeds
  std::optional<double> margin;            ///< nats
  std::optional<double> delta;             ///< final loss minus BF16's, mean over the pairs, nats
  std::optional<Interval> delta_interval;  ///< 95%; null below 2 pairs
  std::optional<double> equivalence_p;     ///< larger p-value of the two one-sided tests
  std::optional<EmaErrors> ema_errors;
  /// False if the runs are too short or not equally long, so that agreement with BF16 proves nothing
  /// (`reason` says why). Then nothing is equivalent or within a criterion.
  bool fit_to_judge = true;
  /// 95% of further BF16 seeds would end within this distance of BF16's mean, nats; null below kFewestUnits
  /// pairs. Always report it with in_noise_band: with few seeds the band is so wide that nearly every recipe
  /// ends inside (5.0 standard deviations to each side with 3 seeds, 2.5 with 8).
  std::optional<double> noise_half_width;
  std::optional<bool> in_noise_band;  ///< final_loss is within noise_half_width of BF16's mean
  /// Total number of seeds that would settle the verdict at this mean and spread; only if inconclusive.
  std::optional<int> seeds_to_settle;

  std::optional<double> excess_loss;        ///< final_loss minus the known entropy of the data source, nats
  std::optional<double> tokens_to_target;   ///< tokens until the EMA is within the margin of BF16's final
                                            ///< loss
  std::optional<double> seconds_to_target;  ///< the same in seconds at the median step time; null for an
                                            ///< emulated recipe
  std::optional<NoiseBand> band;            ///< of a BF16 entry with enough seeds
};

/// Compares curves without records, for tests and for losses from other programs. `uniform_loss`:
/// ln(vocabulary size), if known. Fills everything except fields, members, excess_loss, tokens_to_target and
/// seconds_to_target.
RecipeConvergence compare_curves(const std::vector<LossCurve>& recipe, const std::vector<LossCurve>& bf16,
                                 std::optional<double> uniform_loss, const ConvergenceRules& rules = {});

/// Assesses BF16 alone: its noise band, and a verdict only if it diverged or does not learn.
RecipeConvergence assess_bf16(const std::vector<LossCurve>& bf16, std::optional<double> uniform_loss);

/// Returns every recipe of a group, BF16 first, the others in row order. Leaves out runs that failed for
/// reasons other than a diverging loss. Empty if no run has enough steps.
std::vector<RecipeConvergence> study_convergence(const Group& group, const ConvergenceRules& rules = {});

/// Returns the exponential moving average with weight 0.9 on the past and bias correction, so that the first
/// value is the first loss.
std::vector<double> ema(std::span<const double> loss);

}  // namespace precbench
