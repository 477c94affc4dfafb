// Prices in loss: settled gaps of studies, and which of them is nearest to a planned run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/study_cards.h"

namespace precbench {

/// The settled gap of a recipe at one age of one study.
struct StudyPrice {
  const StudyCard* card = nullptr;
  std::string recipe;               ///< numerics_label of its forks
  double parameters = 0;            ///< of the study's model
  double tokens_per_parameter = 0;  ///< seen when the forks began
  bool experts = false;             ///< the model is a mixture of experts
  MeanWithInterval gap;             ///< nats, loss of the recipe minus BF16's
  double bf16_loss = 0;             ///< nats, BF16's loss at that age

  /// Returns the gap for a run whose BF16 loss is `loss` nats: the same fraction of that loss as in the study. The
  /// margin is such a fraction, too. Nats cannot be compared directly: a token may be a byte or a word.
  MeanWithInterval gap_at(double loss) const;
  /// Returns the study's margin for such a run, nats.
  double margin_at(double loss) const { return card->margin_fraction * loss; }
};

/// Size and age of a planned run.
struct PlannedRun {
  double parameters = 0;
  std::optional<double> tokens;  ///< null: unknown
  bool experts = false;
  double loss = 0;  ///< nats per token, of BF16 at the horizon
  std::optional<double> tokens_per_parameter() const {
    return tokens && parameters > 0 ? std::optional(*tokens / parameters) : std::nullopt;
  }
};

class StudyPrices {
 public:
  /// `cards` must outlive this. Uses prices with an interval over at least kFewestUnits trunks.
  explicit StudyPrices(const std::vector<StudyCard>& cards);

  /// Returns the price of the nearest study of a recipe (distance_to). Of equally near ones, the one with the
  /// narrowest interval; with unknown tokens, the oldest, whose price is the highest where prices grow with age.
  /// Studies of the run's kind of model (dense, experts) come first. Null: the recipe is unproven.
  const StudyPrice* nearest(const std::string& recipe, const PlannedRun& run) const;
  /// Returns the nearest price from the other side of the run's age than `nearest`: older if that is younger,
  /// younger if that is older. Null without tokens or such a study.
  const StudyPrice* from_other_side(const StudyPrice& nearest, const PlannedRun& run) const;
  /// Returns true if a study's forks of the recipe diverged while BF16's did not.
  bool diverged(const std::string& recipe) const;

  const std::vector<StudyPrice>& all() const { return prices_; }

 private:
  std::vector<StudyPrice> prices_;
  std::vector<std::string> diverged_;
};

/// Returns the distance of a study from a run: |ln of the ratio of sizes| + |ln of the ratio of tokens per
/// parameter|. With unknown tokens it decreases with the study's age.
double distance_to(const PlannedRun& run, const StudyPrice& price);

/// Returns the power law in tokens per parameter through two prices, at the run's age; null without tokens or if
/// one of them is not above zero.
std::optional<double> between(const StudyPrice& a, const StudyPrice& b, const PlannedRun& run);

/// Returns "36m (36M parameters) at 0.74 tokens per parameter", or for a model from a file "a model of 36M
/// parameters at ...".
std::string study_words(const StudyPrice& price);

}  // namespace precbench
