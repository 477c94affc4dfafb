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
/// Loss minus BF16's: breaks beyond the margin in nats. Of part learning_rate and batch at the same rung, where BF16
/// trains; of parts that take bits minus that of the plain BF16 fork.
Ladder loss_ladder(const StudyRows& rows, StudyPart part, const std::string& recipe, double margin);

/// The highest factor of the learning rate up to which BF16 trains: a fork's loss is at its end no higher than at its
/// beginning. Null: at none.
std::optional<double> highest_bf16_rate(const StudyRows& rows);

}  // namespace precbench
