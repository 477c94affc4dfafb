// Judges the recipes of a group of records by their loss curves.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "results/record/statistics.h"
#include "results/record/step_time.h"
#include "tools/analysis/convergence.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

Json without_seed(const CaseFields& fields) {
  Json rest = fields;
  rest.erase("seed");
  return rest;
}

/// Returns the warm-up steps: until the learning rate first reaches its maximum. 0 if it starts there.
std::size_t warmup_of(const std::vector<double>& lr) {
  const auto highest = std::max_element(lr.begin(), lr.end());
  return highest == lr.begin() ? 0 : static_cast<std::size_t>(highest - lr.begin()) + 1;
}

LossCurve curve_of(const LocatedRecord& located) {
  const Record& record = located.record;
  return {seed_of(record), record.training->loss, record.status == Status::diverged,
          warmup_of(record.training->lr)};
}

bool has_curve(const Record& record) {
  return (record.status == Status::ok || record.status == Status::diverged) && record.training &&
         !record.training->loss.empty();
}

std::vector<LossCurve> curves_of(const RecipeConvergence& recipe) {
  std::vector<LossCurve> curves;
  for (const LocatedRecord* member : recipe.members) curves.push_back(curve_of(*member));
  return curves;
}

std::optional<double> uniform_loss_of(const std::vector<RecipeConvergence>& recipes) {
  for (const RecipeConvergence& recipe : recipes)
    for (const LocatedRecord* member : recipe.members)
      if (const auto loss = member->record.training->uniform_loss) return loss;
  return std::nullopt;
}

/// Returns the mean number of steps until a run's EMA is within `margin` (a fraction) of BF16's final loss of
/// the same seed. Null if any run never reaches it.
std::optional<double> steps_to_target(const RecipeConvergence& recipe, const SeedPairs& bf16, double margin) {
  double sum = 0, pairs = 0;
  for (const LocatedRecord* member : recipe.members) {
    const LocatedRecord* theirs = bf16.of(*member);
    if (!theirs || theirs->record.status == Status::diverged) continue;
    const auto target = trailing_mean(theirs->record.training->loss);
    if (!target) continue;
    const std::vector<double> smooth = ema(member->record.training->loss);
    const auto reached = std::find_if(smooth.begin(), smooth.end(),
                                      [&](double loss) { return loss <= *target * (1 + margin); });
    if (reached == smooth.end()) return std::nullopt;
    sum += static_cast<double>(reached - smooth.begin() + 1);
    ++pairs;
  }
  return pairs > 0 ? std::optional(sum / pairs) : std::nullopt;
}

void add_ways_to_target(RecipeConvergence& recipe, const SeedPairs& bf16, double margin) {
  const auto steps = steps_to_target(recipe, bf16, margin);
  if (!steps) return;
  const Record& first = recipe.members.front()->record;
  if (const auto tokens = first.training->tokens_per_step)
    recipe.tokens_to_target = *steps * static_cast<double>(*tokens);
  const bool native = first.support && first.support->path() == ExecutionPath::native;
  std::vector<double> step_ms;
  for (const LocatedRecord* member : recipe.members)
    if (const auto ms = step_ms_of_speed(member->record)) step_ms.push_back(*ms);
  if (const auto times = sample_statistics(step_ms); times && native)
    recipe.seconds_to_target = *steps * times->median * 1e-3;
}

/// Returns the unjudged entries of a group. Rows of one recipe form one entry, whatever their status.
std::vector<RecipeConvergence> entries_of(const Group& group) {
  std::vector<RecipeConvergence> entries;
  std::unordered_map<std::string, std::size_t> places;  // by fields
  for (const Row& row : group.rows) {
    RecordRefs members;
    for (const LocatedRecord* member : row.members)
      if (has_curve(member->record)) members.push_back(member);
    if (members.empty()) continue;
    const Json fields = without_seed(row.fields);
    const std::string text = fields.dump(-1, ' ', false, Json::error_handler_t::replace);
    const auto [place, is_new] = places.try_emplace(text, entries.size());
    if (is_new)
      entries.emplace_back(), entries.back().fields = fields, entries.back().is_bf16 = row.is_bf16();
    RecipeConvergence& entry = entries[place->second];
    entry.members.insert(entry.members.end(), members.begin(), members.end());
  }
  return entries;
}

}  // namespace

std::vector<RecipeConvergence> study_convergence(const Group& group, const ConvergenceRules& rules) {
  std::vector<RecipeConvergence> entries = entries_of(group);
  const std::optional<double> uniform_loss = uniform_loss_of(entries);
  Bf16Rows bf16;
  std::map<std::size_t, SeedPairs> seeds;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries[i].is_bf16) bf16.add(i, entries[i].fields), seeds.emplace(i, entries[i].members);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RecipeConvergence& entry = entries[i];
    const std::size_t baseline = bf16.of(entry.fields).value_or(i);
    const std::vector<LossCurve> curves = curves_of(entry);
    std::vector<LossCurve> theirs;
    if (baseline != i) theirs = curves_of(entries[baseline]);
    RecipeConvergence judged = entry.is_bf16 ? assess_bf16(curves, uniform_loss)
                                             : compare_curves(curves, theirs, uniform_loss, rules);
    judged.fields = entry.fields;
    judged.members = entry.members;
    judged.is_bf16 = entry.is_bf16;
    judged.baseline = baseline;
    entry = std::move(judged);
  }
  for (RecipeConvergence& entry : entries) {
    if (entry.final_loss)
      if (const auto floor = entry.members.front()->record.training->entropy_floor)
        entry.excess_loss = *entry.final_loss - *floor;
    if (const auto pairs = seeds.find(entry.baseline); pairs != seeds.end())
      add_ways_to_target(entry, pairs->second, rules.margin);
  }
  const bool any = std::any_of(entries.begin(), entries.end(),
                               [](const RecipeConvergence& e) { return e.final_loss || e.verdict; });
  return any ? entries : std::vector<RecipeConvergence>{};
}

}  // namespace precbench
