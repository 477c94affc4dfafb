// Does a recipe still converge? Its loss curves beside BF16's, paired by seed: each pair had the same first
// weights and the same data, so that what differs is the recipe and the noise that it starts.
//
// Runs are judged by the mean loss of the trailing window (trailing_mean: the last tenth, 5 steps at least),
// if all are equally long and long enough for a recipe to have shown itself. The difference to BF16 is tested
// by Student's t over the seeds. Equivalent means what equivalence.h says, with the seeds as units and the whole margin
// as the bound; worse or better, that its interval excludes zero. Each verdict holds at its own level: among many recipes
// one in twenty may be called worse or better by chance.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
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

/// "equivalent", ..., "not learning", "inconclusive"
const char* name_of(ConvergenceVerdict verdict);

/// The relative error of the EMA(0.9) loss below which a curve counts as matched.
inline constexpr double kEmaTolerance = kMatchedLoss;

struct ConvergenceRules {
  double margin = kMatchedLoss;  ///< a difference within this part of BF16's final loss counts as none
  double level = 0.05;            ///< chance of a wrong "equivalent", and of a wrong "better" or "worse"
};
/// Fewer seeds show no noise band, and settle nothing.
inline constexpr int kFewestSeeds = kFewestUnits;
/// Runs of fewer steps are not judged. The first weights and the data are the same, so early curves nearly
/// coincide whatever the recipe: in results/cpu/convergence-tiny.jsonl no EMA is more than 0.22% from BF16's in
/// the first 40 steps, and they are up to 1.2% away in the first 60.
inline constexpr std::size_t kFewestJudgedSteps = 100;

/// The first numbers of a series that stands elsewhere and outlives this: a million curves are not copied.
class SeriesView {
 public:
  SeriesView(const PackedSeries& series) : SeriesView(series, series.size()) {}
  SeriesView(PackedSeries&&) = delete;
  operator std::vector<double>() const { return {begin(), end()}; }

  /// Those that are there of the first `count`.
  SeriesView first(std::size_t count) const { return {*series_, std::min(count, size_)}; }
  std::size_t size() const { return size_; }
  double operator[](std::size_t i) const { return (*series_)[i]; }
  double front() const { return (*series_)[0]; }
  PackedSeries::const_iterator begin() const { return series_->begin(); }
  PackedSeries::const_iterator end() const { return begin() + static_cast<std::ptrdiff_t>(size_); }

 private:
  SeriesView(const PackedSeries& series, std::size_t count) : series_(&series), size_(count) {}

  const PackedSeries* series_;
  std::size_t size_;
};

/// One run. A loss that is not finite ends its curve and makes it a diverged one.
struct LossCurve {
  std::string seed;        ///< runs of equal seed are paired
  SeriesView loss;         ///< nats, one a step
  bool diverged = false;   ///< the record's status says so
  std::size_t warmup = 0;  ///< steps until the learning rate first is at its highest
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

/// How far a recipe's EMA(0.9) curves lie from BF16's of the same seed: its curve / BF16's - 1. Every run
/// counts by itself, as errors of opposite signs would cancel in a mean.
struct EmaErrors {
  double last = 0;     ///< at the last step, of the run that is farthest from BF16 there
  double largest = 0;  ///< largest magnitude after the first tenth of the steps, of any run
  int runs = 0;        ///< the runs compared, and those that diverged, which are within nothing
  /// Of those, how many are below kEmaTolerance at the last step, and at every step after the first tenth.
  int within_last = 0, within_throughout = 0;
};

/// One recipe's curves, or BF16's own.
struct RecipeConvergence {
  CaseFields fields;              ///< of the group's first row of this recipe: "recipe" and the rest
  RecordRefs members;             ///< runs with a loss curve, all seeds
  bool is_bf16 = false;
  std::size_t baseline = 0;  ///< index of the BF16 entry it is compared with; its own where there is none

  /// Null for BF16 unless it diverged or does not learn, and without BF16 runs to compare with.
  std::optional<ConvergenceVerdict> verdict;
  std::string reason;  ///< one line: what decided the verdict, or what is missing for one

  std::size_t steps = 0;                   ///< judged after; 0 where no curve that did not break is
  int seeds = 0;                           ///< curves that reached `steps`, paired where compared
  std::optional<double> final_loss;        ///< mean over those seeds of the trailing mean, nats
  std::optional<Interval> final_interval;  ///< 95%, of that mean; from 2 seeds on
  std::optional<double> margin;            ///< nats
  std::optional<double> delta;             ///< final loss minus BF16's, mean over the pairs, nats
  std::optional<Interval> delta_interval;  ///< 95%; from 2 pairs on
  std::optional<double> equivalence_p;     ///< the larger p of the two one-sided tests
  std::optional<EmaErrors> ema_errors;
  /// False where closeness to BF16 shows nothing, as the runs are too short or not equally long (the reason
  /// of "inconclusive" says which). Then nothing is equivalent or within a criterion.
  bool fit_to_judge = true;
  /// 95% of further BF16 seeds would end within this of BF16's mean, nats; from kFewestSeeds pairs on. To be
  /// said with in_noise_band: of few seeds the band is so wide that nearly every recipe ends in it (5.0
  /// standard deviations to each side with 3 seeds, 2.5 with 8).
  std::optional<double> noise_half_width;
  std::optional<bool> in_noise_band;  ///< whether final_loss does
  /// Only if inconclusive: seeds in all with which this mean and spread would settle it.
  std::optional<int> seeds_to_settle;

  std::optional<double> excess_loss;        ///< final_loss above the source's known entropy, nats
  std::optional<double> tokens_to_target;   ///< until the EMA is within the margin of BF16's final loss
  std::optional<double> seconds_to_target;  ///< at the median step time; null for an emulated recipe
  std::optional<NoiseBand> band;            ///< of a BF16 entry with enough seeds
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
