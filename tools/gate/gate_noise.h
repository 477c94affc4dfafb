// Run-to-run noise: how far measurements of one unchanged case lie apart. The noise of steps within a run
// says nothing about it: another board, host load or clock moves a whole run, and without `--deterministic
// on` rounding differences of a GPU's sums grow into another loss curve.
//
// It comes from the baseline's repeats, several records of one case, and from a prior by kind of case: the
// spread of the committed repeats under results/, which noise_priors.py computes and checks against the
// numbers of this file. With repeats their spread is pooled over the cases. Runs may be off as a whole, so
// the degrees of freedom are Satterthwaite's for the sum of a component between runs and one between cases of
// a run. A case whose own spread is more than kOwnSpread times the pooled one is judged by its own.
//
// A regression needs a change that neither the repeats (Student's t) nor the prior's limit (normal) explain,
// at a family-wise error rate kAlarmLevel over all cases of a check (Holm, 1979). A pass needs the interval
// of the change, with the blend of prior and repeats as noise, to end below twice the tolerance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record.h"

namespace precbench {

/// Kinds of measured quantities with noise of their own.
enum class NoiseKind : std::uint8_t {
  gpu_step_time,
  cpu_step_time,
  gpu_loss,           ///< a GPU without --deterministic on, learning rate of at least kFastLearning
  gpu_loss_slow,      ///< the same with a lower rate, at which rounding differences hardly grow
  deterministic_loss  ///< the CPU device, or --deterministic on
};

/// Learning rate that separates the two kinds of loss on a GPU.
inline constexpr double kFastLearning = 1e-4;

/// Prior of a kind; fractions of the value, for one run.
struct NoisePrior {
  const char* name;
  double sd;     ///< standard deviation over committed repeats
  double limit;  ///< largest plausible on other machines: three times sd, or the largest of a committed case
};
const NoisePrior& prior_of(NoiseKind kind);

/// Returns the kind of a case's loss.
NoiseKind loss_kind_of(const Record& record);

/// Family-wise rate of false alarms of a check, for speeds and for losses each.
inline constexpr double kAlarmLevel = 0.005;
/// Ratio of a case's own spread to the pooled one from which it is judged by its own.
inline constexpr double kOwnSpread = 2;

/// Noise of one run of a case, as a fraction of the value.
struct RunNoise {
  NoisePrior prior;
  std::size_t records = 1;     ///< number of records of the case in the baseline
  std::optional<double> sd{};  ///< from repeats; null without
  double freedom = 0;          ///< degrees of freedom of `sd`

  /// Returns the probability that an unchanged run is as far above the baseline as `change`. `within`:
  /// standard error of the change that the spread within the runs explains.
  double chance_of(double change, double within = 0) const;
  /// Returns the half-width of the interval of a change, 95% on one side, that noise between runs causes.
  double half_width() const;
  /// Returns the number of records in the baseline, above the present one and at most kMostRecords, with
  /// which `change` would be significant in a check of `cases`; null if no such number is enough.
  std::optional<std::size_t> records_to_settle(double change, std::size_t cases) const;
  /// Returns the number of records with which half_width() would be at most `half_width`, so that a change
  /// could pass; null as above.
  std::optional<std::size_t> records_to_pass(double half_width) const;
  /// Returns "repeats of such cases differ by 0.73% (standard deviation; the baseline has no repeat)".
  std::string text() const;

 private:
  double blended_sd() const;
  std::optional<std::size_t> records_until(const std::function<bool(const RunNoise& later)>& settled) const;
};
inline constexpr std::size_t kMostRecords = 20;

/// Returns the noise of each case. `values`: for each case those of its records in the baseline, in the order
/// in which they were accepted; positive. Cases of one family are pooled.
std::vector<RunNoise> noise_of(const std::vector<std::vector<double>>& values, const NoisePrior& prior);

/// Returns "; 4 more runs of the baseline's commit would tell (check --accept adds them)", or that no number of
/// repeats up to kMostRecords would at the noise of the baseline's repeats or, without any, of committed ones.
/// `records`: from records_to_settle() or records_to_pass().
std::string repeats_remedy(const RunNoise& noise, const std::optional<std::size_t>& records);

}  // namespace precbench
