// Differences between paired forks. See study_evidence.h.
#include "tools/analysis/study_evidence.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "results/record/statistics.h"

namespace precbench {
namespace {

ForkEvidence evidence_of(const std::string& name, const std::vector<StudyPair>& pairs) {
  ForkEvidence evidence{name, {}, {}, 0};
  std::map<std::int64_t, AgeDifferences> ages;
  // by trunk and number of quarters of a fork
  std::map<std::int64_t, std::map<std::size_t, std::vector<double>>> lengths;
  for (const auto& [cell, record, reference] : pairs) {
    const std::optional<double> other = trailing_loss(reference), loss = trailing_loss(record);
    if (other && record.status == Status::diverged) ++evidence.diverged;
    if (loss && reference.status == Status::diverged) ++evidence.reference_diverged;
    if (!other || !loss) continue;
    ages[cell.age].age = cell.age;
    ages[cell.age].by_trunk[cell.trunk].push_back(*loss - *other);
    const std::size_t steps = std::min(record.training->loss.size(), reference.training->loss.size());
    for (const std::size_t quarters : {1u, 2u, 4u})
      if (const auto ours = trailing_loss(record, steps * quarters / 4),
          theirs = trailing_loss(reference, steps * quarters / 4);
          ours && theirs)
        lengths[cell.trunk][quarters].push_back(*ours - *theirs);
  }
  for (auto& [age, differences] : ages) evidence.ages.push_back(std::move(differences));
  for (const auto& [trunk, by_quarters] : lengths) {
    evidence.by_length.emplace_back();
    for (const auto& [quarters, differences] : by_quarters)
      evidence.by_length.back().push_back(mean_and_spread(differences).mean);
  }
  return evidence;
}

}  // namespace

ForkEvidence evidence_of(const StudyRows& rows, const std::string& name, const StudyCells& cells) {
  ForkEvidence evidence = evidence_of(name, rows.pairs(StudyPart::fork, cells));
  evidence.reference_diverged = 0;  // a state from which BF16 diverges says nothing about a recipe
  return evidence;
}

ForkEvidence evidence_of(const StudyRows& rows, const std::string& recipe) {
  return evidence_of(rows, recipe, rows.of(StudyPart::fork, recipe));
}

ForkEvidence evidence_against(const StudyRows& rows, const std::string& recipe,
                              const std::string& incumbent) {
  ForkEvidence evidence =
      evidence_of(recipe, pairs_of(rows.of(StudyPart::fork, recipe), rows.of(StudyPart::fork, incumbent)));
  evidence.reference = incumbent;
  return evidence;
}

std::optional<std::string> fork_unsupported_reason(const StudyRows& rows, const std::string& recipe) {
  const StudyCells& cells = rows.of(StudyPart::fork, recipe);
  const auto unsupported = [](const auto& cell) { return cell.second->status == Status::unsupported; };
  if (!std::all_of(cells.begin(), cells.end(), unsupported)) return std::nullopt;
  return cells.empty() ? "" : cells.begin()->second->error.value_or("");
}

}  // namespace precbench
