// Ladders of a study: one stress, raised until a recipe breaks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/study_rows.h"

namespace precbench {

/// `value` is what breaks the recipe when it grows.
struct LadderRung {
  double at = 0;  ///< exponent of two (0: without outliers), factor, bits, sequences
  std::optional<double>
      value{};  ///< gradient error of an outlier ladder, else loss minus BF16's, nats; null: not finite, or diverged
  bool holds = false;
};

struct Ladder {
  std::vector<LadderRung> rungs;         ///< from the smallest magnitude on; none: not climbed
  std::optional<double> holds() const;   ///< the highest rung below which all hold; null: not even the first
  std::optional<double> breaks() const;  ///< the first that does not hold; null: none of those tried
};

/// An outlier breaks a recipe whose gradient error is then larger. One limit for all: a multiple of the recipe's own error
/// would let those bear more that are worse without outliers, and one of the best recipe's would depend on which others
/// were run.
inline constexpr double kLargestGradientError = 0.2;

/// Gradient error under outliers, `kind` "ffn", "norm" or "vo". The first rung is that of the same states without.
Ladder outlier_ladder(const StudyRows& rows, const std::string& recipe, const std::string& kind);
/// Loss minus BF16's: breaks beyond the margin in nats. Of part learning_rate at the same rung, up to the highest at which
/// BF16 is stable; of part batch at the same rung; of parts that take bits minus that of the plain BF16 fork.
Ladder loss_ladder(const StudyRows& rows, StudyPart part, const std::string& recipe, double margin);

/// BF16's own ladder of learning rates: its loss at a rung minus that of its fork at the study's own rate, of the same state
/// and data, so that no batch is easier for one of them. It holds, that is BF16 is stable, where its forks end and
/// - the rate is no higher than the one at which the trunk came to this state: the trunk has shown it. A fork there may well
///   end higher than one at a lower rate, which brings a loss down at once; or
/// - it is higher, and their mean is no more than the margin above.
/// Beyond, what recipes and BF16 differ by is mostly chance, of either sign (results/h200/study-36m.jsonl at x30).
Ladder bf16_rates(const StudyRows& rows, double margin);

}  // namespace precbench
