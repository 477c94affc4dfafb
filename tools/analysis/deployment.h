// The cost of training in a recipe by how its weights are deployed: the held-out losses after the forks' last steps,
// read in BF16 and in the recipe.
//
// The raw gap is the loss in FP8 of weights trained in FP8 minus the loss in BF16 of weights trained in BF16. Nobody
// chooses between these two: a model that is served in FP8 is served so whatever it was trained in. Each deployment has
// an answer of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/fork_verdict.h"
#include "tools/analysis/output_means.h"
#include "tools/analysis/study_rows.h"

namespace precbench {

/// A difference of held-out losses, with trunks as units, and the verdict that judge_forks gives it.
struct DeploymentAnswer {
  ForkVerdict verdict;
  /// Half of the 95% interval that comes from the choice of the text, nats: over groups of sequences
  /// (Reading::groups), each a mean over the trunks, at the oldest age. The trunks' interval lacks it, because all read
  /// the same text.
  std::optional<double> text;
  double bf16_loss = 0;  ///< nats: BF16's forks read in BF16, mean at the verdict's age
  /// Difference at the verdict's age as a fraction of bf16_loss, and in nats per byte of text. In both, models with
  /// different tokenizers compare. Null below 2 trunks, and per byte where the length of tokens is unknown.
  std::optional<MeanWithInterval> share, per_byte;
};

/// Returns an interval as a fraction of `unit`; null without an interval or without a unit above 0.
std::optional<MeanWithInterval> ratio_to(const std::optional<MeanWithInterval>& value, std::optional<double> unit);

/// Difference in one reading: weights of the recipe's forks minus those of BF16's, both read in `recipe`.
struct ReadingDifference {
  std::string recipe;
  MeanWithInterval difference;  ///< nats, over the trunks at the oldest age
};

struct Deployment {
  std::int64_t tokens = 0;  ///< held out
  double bf16_loss = 0;     ///< nats: BF16's forks read in BF16, mean at the oldest age
  std::optional<double> bytes_per_token;  ///< of the held-out text; null where the records do not have one value
  /// Trained in the recipe minus trained in BF16: both read in BF16; both read in the recipe; and the raw gap, each
  /// read in the format that it was trained in. Null where the records lack the readings.
  std::optional<DeploymentAnswer> in_bf16, in_recipe, raw;
  /// Distance between two readings of the same weights, in BF16 and in the recipe, over the forks at the oldest age:
  /// trainer and roll-out of reinforcement learning. Null without --eval-recipes.
  std::optional<OutputMeans> of_bf16_weights, of_recipe_weights;
  std::vector<ReadingDifference> across;  ///< readings in the other recipes of the study
};

/// Returns one deployment per recipe, null where its forks or BF16's have no held-out loss. Recipes are judged
/// together, once for each answer. `controls` and `missed`: as in judge_forks.
std::vector<std::optional<Deployment>> judge_deployments(const StudyRows& rows,
                                                         const std::vector<std::string>& recipes,
                                                         int controls,
                                                         const std::vector<std::string>& missed);

}  // namespace precbench
