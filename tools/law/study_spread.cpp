// Compares studies of one model. See study_spread.h.
#include "tools/law/study_spread.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "results/record/statistics.h"

namespace precbench {

namespace {

/// Gaps of studies of one model at one age in one recipe, as shares of the raw gap, with the errors of their runs.
using StudyGroup = std::vector<MeasuredGap>;

/// Returns the sum of the squared deviations from the groups' means, over their variance if studies differ by `variance`.
double weighted_squares(const std::vector<StudyGroup>& groups, double variance) {
  double all = 0;
  for (const StudyGroup& group : groups) {
    double weights = 0, mean = 0;
    for (const MeasuredGap& one : group) {
      const double weight = 1 / (one.error * one.error + variance);
      weights += weight, mean += weight * one.mean;
    }
    mean /= weights;
    for (const MeasuredGap& one : group)
      all += (one.mean - mean) * (one.mean - mean) / (one.error * one.error + variance);
  }
  return all;
}

/// Returns the variance between studies of one group at which the weighted squares are as large as expected, which is
/// `freedom` (Paule and Mandel 1982). Studies with large errors weigh little, unlike in a mean of squares less the errors.
double variance_between(const std::vector<StudyGroup>& groups, int freedom) {
  constexpr double kExact = 1e-300;  // avoids a division by zero for studies without an error
  if (freedom == 0 || weighted_squares(groups, kExact) <= freedom) return 0;
  double low = 0, high = 0;
  for (const StudyGroup& group : groups) {
    std::vector<double> gaps;
    for (const MeasuredGap& one : group) gaps.push_back(one.mean);
    high += std::pow(mean_and_spread(gaps).sd, 2) * static_cast<double>(gaps.size() - 1) / freedom;
  }
  for (int step = 0; step < 200; ++step) {
    const double middle = (low + high) / 2;
    (weighted_squares(groups, middle) > freedom ? low : high) = middle;
  }
  return high;
}

}  // namespace

std::optional<MeasuredGap> served_gap(const GapEvidence& one, Serving serving) {
  if (serving == Serving::bf16) return one.in_bf16;
  if (serving == Serving::recipe) return one.in_recipe;
  return MeasuredGap{one.gap, one.gap_error};
}

StudySpread spread_between_studies(const std::vector<GapEvidence>& evidence, Serving serving) {
  std::map<std::string, std::vector<const GapEvidence*>> studies_of;
  for (const GapEvidence& one : evidence)
    if (one.training == TrainingStart::continued && one.tokens_per_parameter >= kYoungestLawAge &&
        served_gap(one, serving))
      studies_of[fmt::format("{:.2e} {:.1e} {}", one.parameters, one.tokens_per_parameter, one.recipe)]
          .push_back(&one);
  StudySpread spread;
  std::set<std::string> models;
  std::vector<StudyGroup> groups;
  for (const auto& [key, studies] : studies_of) {
    double scale = 0;  // mean raw gap
    for (const GapEvidence* one : studies) scale += one->gap / static_cast<double>(studies.size());
    if (studies.size() < 2 || !(scale > 0)) continue;
    StudyGroup& group = groups.emplace_back();
    for (const GapEvidence* one : studies) {
      const MeasuredGap gap = *served_gap(*one, serving);
      group.push_back({gap.mean / scale, gap.error / scale});
    }
    spread.freedom += static_cast<int>(studies.size()) - 1, ++spread.groups;
    models.insert(fmt::format("{:.2e}", studies.front()->parameters));
  }
  spread.models = static_cast<int>(models.size());
  spread.share = std::sqrt(variance_between(groups, spread.freedom));
  return spread;
}

}  // namespace precbench
