// Ladders of a study: one stress is raised until a recipe breaks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/study_rows.h"

namespace precbench {

/// One rung; a larger `value` is worse.
struct LadderRung {
  double at = 0;  ///< power-of-two exponent (0: no outliers), factor, bits or sequences
  /// gradient error (outlier ladder) or loss minus BF16's, nats; null if not finite or diverged
  std::optional<double> value{};
  bool holds = false;
};

struct Ladder {
  std::vector<LadderRung> rungs;         ///< by increasing magnitude; empty if not run
  std::optional<double> holds() const;   ///< highest rung up to which all hold; null if the first breaks
  std::optional<double> breaks() const;  ///< first rung that breaks; null if all hold
};

/// Gradient error above which an outlier breaks a recipe. A common limit: relative to the recipe's own error,
/// recipes that are worse without outliers would tolerate more; relative to the best recipe, the result would
/// depend on which others were run.
inline constexpr double kLargestGradientError = 0.2;

/// Returns gradient errors under outliers of `kind` "ffn", "norm" or "vo". The first rung is the same
/// state without outliers.
Ladder outlier_ladder(const StudyRows& rows, const std::string& recipe, const std::string& kind);
/// Returns loss minus BF16's; a rung breaks beyond `margin` nats. learning_rate: BF16 at the same rung, up to
/// the highest rung at which BF16 is stable. batch: BF16 at the same rung. Bit ladders: the plain BF16 fork.
Ladder loss_ladder(const StudyRows& rows, StudyPart part, const std::string& recipe, double margin);

/// Returns BF16's own ladder of learning rates: its loss at a rung minus that of its fork at the study's own
/// rate, from the same state and on the same data. A rung holds, that is BF16 is stable, if its forks end and
/// - the rate is at most the one at which the trunk reached this state, so that the trunk has proven it. Such
///   a fork may end higher than one at a lower rate, which reduces the loss at once. Or
/// - the rate is higher, and the mean loss is at most `margin` above.
/// Beyond that, differences between recipes and BF16 are mostly chance, of either sign
/// (results/h200/study-36m.jsonl.xz at x30).
Ladder bf16_rates(const StudyRows& rows, double margin);

}  // namespace precbench
