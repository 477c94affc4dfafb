// Compares studies of one model. See study_spread.h.
#include "tools/law/study_spread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "results/record/statistics.h"

namespace precbench {

std::optional<MeasuredGap> served_gap(const GapEvidence& one, Serving serving) {
  if (serving == Serving::bf16) return one.in_bf16;
  if (serving == Serving::recipe) return one.in_recipe;
  return MeasuredGap{one.gap, one.gap_error};
}

StudySpread spread_between_studies(const std::vector<GapEvidence>& evidence, Serving serving) {
  std::map<std::string, std::vector<const GapEvidence*>> groups;
  for (const GapEvidence& one : evidence)
    if (one.training == TrainingStart::continued && one.tokens_per_parameter >= kYoungestLawAge &&
        served_gap(one, serving))
      groups[fmt::format("{:.2e} {:.1e} {}", one.parameters, one.tokens_per_parameter, one.recipe)].push_back(
          &one);
  StudySpread spread;
  std::set<std::string> models;
  double squares = 0;
  for (const auto& [key, studies] : groups) {
    std::vector<double> gaps, raw_gaps;
    double errors = 0;  // mean squared error of the studies' runs
    for (const GapEvidence* one : studies) {
      const MeasuredGap gap = *served_gap(*one, serving);
      gaps.push_back(gap.mean), raw_gaps.push_back(one->gap);
      errors += gap.error * gap.error / static_cast<double>(studies.size());
    }
    const double scale = mean_and_spread(raw_gaps).mean;
    if (studies.size() < 2 || !(scale > 0)) continue;
    const int differences = static_cast<int>(studies.size()) - 1;
    squares += differences * (std::pow(mean_and_spread(gaps).sd, 2) - errors) / (scale * scale);
    spread.freedom += differences, ++spread.groups;
    models.insert(fmt::format("{:.2e}", studies.front()->parameters));
  }
  spread.models = static_cast<int>(models.size());
  if (spread.freedom > 0) spread.share = std::sqrt(std::max(0.0, squares / spread.freedom));
  return spread;
}

}  // namespace precbench
