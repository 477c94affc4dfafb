// Differences between paired forks. See study_evidence.h.
#include "tools/analysis/study_evidence.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "results/record/statistics.h"

namespace precbench {
namespace {

/// Returns the looks at the forks of a recipe (Looks), which have at least one age.
Looks looks_at(const StudyCells& cells) {
  std::map<std::int64_t, std::map<std::int64_t, std::int64_t>> seeds;  // by age and trunk, of any status
  std::set<StudySize> sizes;
  std::optional<StudySize> asked;
  std::array<std::set<std::int64_t>, 3> unwritten;  // trunks, seeds and ages of rows without sizes
  for (const auto& [cell, record] : cells) {
    ++seeds[cell.age][cell.trunk];
    const auto& written = record->study->sizes;
    if (!written || written->empty()) {
      unwritten[0].insert(cell.trunk), unwritten[1].insert(cell.seed), unwritten[2].insert(cell.age);
      continue;
    }
    sizes.insert(written->begin(), written->end());
    asked = std::max(asked.value_or(written->back()), written->back());
  }
  if (sizes.empty()) return {};
  if (!unwritten[0].empty())
    sizes.insert({std::ssize(unwritten[0]), std::ssize(unwritten[1]), std::ssize(unwritten[2])});
  StudySize there{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max(),
                  std::ssize(seeds)};
  for (const auto& [age, trunks] : seeds) {
    there.trunks = std::min<std::int64_t>(there.trunks, std::ssize(trunks));
    for (const auto& [trunk, count] : trunks) there.seeds = std::min(there.seeds, count);
  }
  const auto reached = [&](const StudySize& size) {
    return size.trunks <= there.trunks && size.seeds <= there.seeds && size.ages <= there.ages;
  };
  Looks looks;
  for (const StudySize& size : sizes)
    if (size.trunks >= kFewestTrunks && reached(size)) looks.trunks.push_back(size.trunks);
  if (!reached(*asked)) looks.awaited = asked->trunks;
  return looks;
}

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
  evidence.looks = looks_at(cells);
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
  const Looks own = looks_at(rows.of(StudyPart::fork, recipe)),
              theirs = looks_at(rows.of(StudyPart::fork, incumbent));
  evidence.looks = own.count() < theirs.count() ? theirs : own;
  if (theirs.awaited) evidence.looks.awaited = theirs.awaited;
  return evidence;
}

std::optional<std::string> fork_unsupported_reason(const StudyRows& rows, const std::string& recipe) {
  const StudyCells& cells = rows.of(StudyPart::fork, recipe);
  const auto unsupported = [](const auto& cell) { return cell.second->status == Status::unsupported; };
  if (!std::all_of(cells.begin(), cells.end(), unsupported)) return std::nullopt;
  return cells.empty() ? "" : cells.begin()->second->error.value_or("");
}

}  // namespace precbench
