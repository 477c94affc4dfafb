// How much studies of one model differ: in text, batch, length of the forks, schedule of the BF16 run.
#pragma once

#include <optional>
#include <vector>

#include "tools/law/gap_evidence.h"
#include "tools/law/loss_law.h"

namespace precbench {

/// Spread of a served gap between studies of one model at one age.
struct StudySpread {
  double share =
      0;  ///< standard deviation of one study, as a share of the raw gap, without the error of its runs
  int freedom = 0;  ///< differences between studies that it comes from; 0: none, and the share is unknown
  int groups = 0;   ///< of model, age and recipe with several studies
  int models = 0;
};

/// Returns the gap of a study as served; null where that was not measured.
std::optional<MeasuredGap> served_gap(const GapEvidence& one, Serving serving);

/// Returns the pooled spread over all models of kYoungestLawAge and older that several studies continued in one recipe
/// from one age. Differences in several recipes count as independent. The raw gap is the scale, because served gaps may
/// be near zero.
StudySpread spread_between_studies(const std::vector<GapEvidence>& evidence, Serving serving);

}  // namespace precbench
