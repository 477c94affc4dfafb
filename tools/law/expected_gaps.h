// The loss gap of training in a recipe: measured on this very model at this age, else what the law of the loss gap
// (tools/law/loss_law.h) forecasts.
//
// The committed studies read other texts than the reader's run will, with other batches. So their interval spans the
// error of their runs and the spread between studies of one model (study_spread.h), twice: theirs and the reader's. The
// reader's own studies are of the reader's text, and their interval is that of their runs.
//
// Most studies continued a BF16 model in the recipe. For a run from scratch their raw gap is multiplied by the law's factor
// of such runs and by what the deployment leaves of it, as the law's own forecasts are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/record/statistics.h"
#include "tools/analysis/published_losses.h"
#include "tools/law/loss_law.h"

namespace precbench {

/// A planned run and how its weights will be served.
struct PlannedRun {
  double parameters = 0;         ///< active ones of a mixture of experts
  std::optional<double> tokens;  ///< null: unknown
  Serving serving = Serving::bf16;
  TrainingStart training = TrainingStart::from_scratch;
};

/// Loss gap at one number of tokens, nats, with its 80% interval.
struct ExpectedGap {
  MeanWithInterval gap;                 ///< mean: the median of a forecast
  std::optional<GapEvidence> measured;  ///< the first of the studies that it is the mean of; null: the law
  int studies = 0;                      ///< of this model; 0: the law
  int models = 0;  ///< of kYoungestLawAge and older that were studied in the recipe; 0: only younger ones
  bool younger = false;  ///< than the law's models: the gap is that at kYoungestLawAge

  /// Returns "measured", "law" or "law, young models".
  const char* evidence() const;
  /// Returns true if the studies continued a BF16 model in the recipe.
  bool continued() const { return measured && measured->training == TrainingStart::continued; }
  /// Returns what stands behind it: "this model", "7 trained models" or "young models".
  std::string evidence_words() const;
};

class ExpectedGaps {
 public:
  /// `own`: what the reader's studies measured, preferred to `committed`. `diverged`: recipes whose forks diverged in
  /// them.
  ExpectedGaps(const LossLaw& law, std::vector<GapEvidence> own, const std::vector<GapEvidence>& committed,
               std::vector<std::string> diverged = {});

  /// Returns the loss gap at `tokens`; null if neither a study nor the law knows the recipe.
  std::optional<ExpectedGap> at(const std::string& recipe, const PlannedRun& run, double tokens) const;
  bool diverged(const std::string& recipe) const;
  const LossLaw& law() const { return law_; }

 private:
  const LossLaw& law_;
  std::vector<GapEvidence> own_, committed_;
  std::vector<std::string> diverged_;
};

}  // namespace precbench
