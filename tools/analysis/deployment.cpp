// Pairs the readings of forks and judges their differences. See deployment.h.
#include "tools/analysis/deployment.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "tools/analysis/study_evidence.h"

namespace precbench {
namespace {

constexpr const char* kBf16 = "bf16";

/// Returns the evaluation after a successful run's last step; null without one.
const Evaluation* last_evaluation(const Record& record) {
  if (record.status != Status::ok || !record.training || record.training->evaluations.empty()) return nullptr;
  const Evaluation& last = record.training->evaluations.back();
  return last.step == std::ssize(record.training->loss) ? &last : nullptr;
}

const Reading* find_reading(const Evaluation& evaluation, const std::string& recipe) {
  if (!evaluation.readings) return nullptr;
  const auto found = std::find_if(evaluation.readings->begin(), evaluation.readings->end(),
                                  [&](const Reading& reading) { return reading.recipe == recipe; });
  return found == evaluation.readings->end() ? nullptr : &*found;
}

/// Returns true if the run may change to another recipe before its last step.
bool changes_recipe(const Record& record) {
  return record.definition && record.definition->recipe && record.definition->recipe->contains("schedule");
}

/// Loss and groups of weights read in a recipe. Older records have the loss alone, in BF16 and in the fork's own
/// recipe.
struct Read {
  double loss = 0;
  std::vector<double> groups;
};

/// `trained`: the recipe of the record.
std::optional<Read> read_in(const Record& record, const std::string& trained, const std::string& recipe) {
  const Evaluation* last = last_evaluation(record);
  if (!last) return std::nullopt;
  if (const Reading* reading = find_reading(*last, recipe))
    return reading->loss ? std::optional(Read{*reading->loss, reading->groups}) : std::nullopt;
  const bool own = recipe == trained && !changes_recipe(record);
  const std::optional<double> loss = recipe == kBf16 ? last->bf16_loss : own ? last->loss : std::nullopt;
  return loss ? std::optional(Read{*loss, {}}) : std::nullopt;
}

/// The recipes in which a fork's weights and the weights of BF16's fork are read.
struct Deployed {
  std::string fork, bf16;
};

/// Differences of paired forks, and their groups by age and trunk.
struct Differences {
  ForkEvidence evidence;
  std::map<std::int64_t, std::vector<std::vector<double>>>
      groups;  // by age, one entry per fork that has them

  std::optional<MeanWithInterval> oldest() const {
    if (evidence.ages.empty()) return std::nullopt;
    std::vector<double> means;
    for (const auto& [trunk, forks] : evidence.ages.back().by_trunk)
      means.push_back(mean_and_spread(forks).mean);
    return mean_with_interval(means);
  }

  /// Returns DeploymentAnswer::text.
  std::optional<double> text() const {
    if (groups.empty()) return std::nullopt;
    const std::vector<std::vector<double>>& forks = groups.rbegin()->second;
    std::vector<double> means(forks.front().size(), 0.0);
    for (const std::vector<double>& fork : forks) {
      if (fork.size() != means.size()) return std::nullopt;
      for (std::size_t g = 0; g < means.size(); ++g) means[g] += fork[g] / static_cast<double>(forks.size());
    }
    const auto interval = mean_with_interval(means);
    return interval ? std::optional((interval->high - interval->low) / 2) : std::nullopt;
  }
};

Differences differences_of(const StudyRows& rows, const std::string& recipe, const StudyCells& cells,
                           const Deployed& deployed) {
  Differences all{evidence_of(rows, recipe, cells), {}};
  all.evidence.ages.clear(), all.evidence.by_length.clear();  // of training losses; `diverged` stays
  std::map<std::int64_t, AgeDifferences> ages;
  for (const auto& [cell, record, reference] : rows.pairs(StudyPart::fork, cells)) {
    const auto ours = read_in(record, recipe, deployed.fork),
               theirs = read_in(reference, kBf16, deployed.bf16);
    if (!ours || !theirs || last_evaluation(record)->step != last_evaluation(reference)->step) continue;
    ages[cell.age].age = cell.age;
    ages[cell.age].by_trunk[cell.trunk].push_back(ours->loss - theirs->loss);
    if (ours->groups.empty() || ours->groups.size() != theirs->groups.size()) continue;
    std::vector<double>& groups = all.groups[cell.age].emplace_back(ours->groups);
    for (std::size_t g = 0; g < groups.size(); ++g) groups[g] -= theirs->groups[g];
  }
  for (auto& [age, differences] : ages) all.evidence.ages.push_back(std::move(differences));
  return all;
}

/// Returns the distance between two readings of the forks of one recipe; null if any lacks it.
std::optional<OutputMeans> distance_of(const StudyCells& cells, const std::string& recipe) {
  std::int64_t oldest = 0;
  for (const auto& [cell, record] : cells) oldest = std::max(oldest, cell.age);
  std::vector<const OutputDistance*> measurements;
  for (const auto& [cell, record] : cells) {
    if (cell.age != oldest) continue;
    const Evaluation* last = last_evaluation(*record);
    const Reading* reading = last ? find_reading(*last, recipe) : nullptr;
    measurements.push_back(reading && reading->outputs ? &*reading->outputs : nullptr);
  }
  return output_means(measurements);
}

/// Held-out losses of BF16's forks, read in BF16.
struct Reference {
  std::int64_t tokens = 0;
  std::map<std::int64_t, std::vector<double>> losses;  ///< by age
  std::optional<double> bytes_per_token;
};

Reference reference_of(const StudyRows& rows) {
  Reference reference;
  std::set<std::optional<double>> lengths;
  for (const auto& [cell, record] : rows.of(StudyPart::fork, kBf16))
    if (const auto read = read_in(*record, kBf16, kBf16)) {
      reference.losses[cell.age].push_back(read->loss);
      reference.tokens = last_evaluation(*record)->tokens;
      lengths.insert(record->training->held_out_bytes_per_token);
    }
  if (lengths.size() == 1) reference.bytes_per_token = *lengths.begin();
  return reference;
}

/// Returns the noise floor of BF16's forks, read in a recipe.
NoiseFloor floor_of(const StudyRows& rows, const std::string& reading, const ForkRules& rules) {
  const ForkEvidence neutral = differences_of(rows, kBf16, rows.perturbed, {reading, reading}).evidence;
  return {noise_floor(neutral), trunks_to_quiet(neutral, rules)};
}

}  // namespace

std::optional<MeanWithInterval> ratio_to(const std::optional<MeanWithInterval>& value, std::optional<double> unit) {
  if (!value || !unit || !(*unit > 0)) return std::nullopt;
  return MeanWithInterval{value->mean / *unit, value->low / *unit, value->high / *unit};
}

std::vector<std::optional<Deployment>> judge_deployments(const StudyRows& rows,
                                                         const std::vector<std::string>& recipes,
                                                         int controls,
                                                         const std::vector<std::string>& missed) {
  std::vector<std::optional<Deployment>> deployments(recipes.size());
  const Reference reference = reference_of(rows);
  if (reference.losses.empty()) return deployments;
  ForkRules rules{.margin = 0, .level = rows.level};
  for (const auto& [age, losses] : reference.losses)
    rules.margins[age] = rules.margin = rows.margin * mean_and_spread(losses).mean;
  const auto cells = [&](std::size_t i) -> const StudyCells& { return rows.of(StudyPart::fork, recipes[i]); };
  const auto make = [&](std::size_t i) -> Deployment& {
    if (!deployments[i]) {
      deployments[i].emplace();
      deployments[i]->tokens = reference.tokens;
      deployments[i]->bf16_loss = mean_and_spread(reference.losses.rbegin()->second).mean;
      deployments[i]->bytes_per_token = reference.bytes_per_token;
    }
    return *deployments[i];
  };
  std::map<std::string, NoiseFloor>
      known_floors;  // by reading; two answers of all recipes share that in BF16
  const auto floor_in = [&](const std::string& reading) {
    const auto known = known_floors.find(reading);
    return known != known_floors.end()
               ? known->second
               : known_floors.emplace(reading, floor_of(rows, reading, rules)).first->second;
  };
  // Judges one answer of all recipes together. The noise floor of each is that of BF16's forks as they are read for it.
  const auto judge = [&](std::optional<DeploymentAnswer> Deployment::*answer,
                         const std::function<Deployed(const std::string&)>& deployed) {
    std::vector<std::size_t> places;
    std::vector<std::optional<double>> texts;
    std::vector<ForkEvidence> evidence;
    std::vector<NoiseFloor> floors;
    for (std::size_t i = 0; i < recipes.size(); ++i) {
      const Deployed read = deployed(recipes[i]);
      Differences own = differences_of(rows, recipes[i], cells(i), read);
      if (own.evidence.ages.empty()) continue;
      floors.push_back(floor_in(read.bf16));
      places.push_back(i), texts.push_back(own.text()), evidence.push_back(std::move(own.evidence));
    }
    std::vector<ForkVerdict> verdicts = judge_forks(evidence, floors, controls, missed, rules);
    for (std::size_t k = 0; k < places.size(); ++k) {
      const auto at = reference.losses.find(verdicts[k].age);
      const std::vector<double>& losses =
          at == reference.losses.end() ? reference.losses.rbegin()->second : at->second;
      const double loss = mean_and_spread(losses).mean;
      const auto share = ratio_to(verdicts[k].difference, loss);
      const auto per_byte = ratio_to(verdicts[k].difference, reference.bytes_per_token);
      make(places[k]).*answer = DeploymentAnswer{std::move(verdicts[k]), texts[k], loss, share, per_byte};
    }
  };
  judge(&Deployment::in_bf16, [](const std::string&) { return Deployed{kBf16, kBf16}; });
  judge(&Deployment::in_recipe, [](const std::string& recipe) { return Deployed{recipe, recipe}; });
  judge(&Deployment::raw, [](const std::string& recipe) { return Deployed{recipe, kBf16}; });
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    if (!deployments[i]) continue;
    Deployment& one = *deployments[i];
    one.of_bf16_weights = distance_of(rows.of(StudyPart::fork, kBf16), recipes[i]);
    one.of_recipe_weights = distance_of(cells(i), recipes[i]);
    for (const std::string& other : recipes)
      if (other != recipes[i])
        if (const auto difference = differences_of(rows, recipes[i], cells(i), {other, other}).oldest())
          one.across.push_back({other, *difference});
  }
  return deployments;
}

}  // namespace precbench
