// The recipes of a group of records, judged by their loss curves.
#include <algorithm>

#include "results/statistics.h"
#include "tools/convergence.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

Json without_seed(const Json& fields) {
  Json rest = fields;
  rest.erase("seed");
  return rest;
}

/// Steps of the learning rate's warm-up: until it first is at its highest. 0 where it starts there.
std::size_t warmup_of(const std::vector<double>& lr) {
  const auto highest = std::max_element(lr.begin(), lr.end());
  return highest == lr.begin() ? 0 : static_cast<std::size_t>(highest - lr.begin()) + 1;
}

LossCurve curve_of(const LocatedRecord& located) {
  const Record& record = located.record;
  return {field_text(record.case_fields.value("seed", Json())), record.training->loss,
          record.status == Status::diverged, warmup_of(record.training->lr)};
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

/// Steps until each run's EMA is within `margin` (a fraction) of where BF16 ended with the same seed; mean
/// over the pairs, null if one never gets there.
std::optional<double> steps_to_target(const RecipeConvergence& recipe, const RecipeConvergence& bf16,
                                      double margin) {
  double sum = 0, pairs = 0;
  for (const LocatedRecord* member : recipe.members)
    for (const LocatedRecord* theirs : bf16.members) {
      const LossCurve curve = curve_of(*member), target_curve = curve_of(*theirs);
      const auto target = trailing_mean(target_curve.loss);
      if (curve.seed != target_curve.seed || target_curve.diverged || !target) continue;
      const std::vector<double> smooth = ema(curve.loss);
      const auto reached = std::find_if(smooth.begin(), smooth.end(),
                                        [&](double loss) { return loss <= *target * (1 + margin); });
      if (reached == smooth.end()) return std::nullopt;
      sum += static_cast<double>(reached - smooth.begin() + 1);
      ++pairs;
    }
  return pairs > 0 ? std::optional(sum / pairs) : std::nullopt;
}

void add_ways_to_target(RecipeConvergence& recipe, const RecipeConvergence& bf16, double margin) {
  const auto steps = steps_to_target(recipe, bf16, margin);
  if (!steps) return;
  const Record& first = recipe.members.front()->record;
  if (const auto tokens = first.training->tokens_per_step)
    recipe.tokens_to_target = *steps * static_cast<double>(*tokens);
  const bool native = first.support && first.support->path() == ExecutionPath::native;
  std::vector<double> step_ms;
  for (const LocatedRecord* member : recipe.members)
    if (member->record.timing && member->record.timing->median_ms)
      step_ms.push_back(*member->record.timing->median_ms);
  if (const auto times = sample_statistics(step_ms); times && native)
    recipe.seconds_to_target = *steps * times->median * 1e-3;
}

/// The entries of a group, not judged yet: rows of one recipe, whatever their status, are one entry.
std::vector<RecipeConvergence> entries_of(const Group& group) {
  std::vector<RecipeConvergence> entries;
  for (const Row& row : group.rows) {
    RecordRefs members;
    for (const LocatedRecord* member : row.members)
      if (has_curve(member->record)) members.push_back(member);
    if (members.empty()) continue;
    const Json fields = without_seed(row.fields);
    auto entry = std::find_if(entries.begin(), entries.end(),
                              [&](const RecipeConvergence& e) { return e.fields == fields; });
    if (entry == entries.end()) {
      entry = entries.insert(entries.end(), RecipeConvergence{});
      entry->fields = fields;
      entry->is_bf16 = row.is_bf16();
    }
    entry->members.insert(entry->members.end(), members.begin(), members.end());
  }
  return entries;
}

/// The index of the BF16 entry that one is compared with; its own if there is none.
std::size_t baseline_of(const std::vector<RecipeConvergence>& entries, std::size_t index) {
  std::vector<const Json*> bf16;
  for (const RecipeConvergence& entry : entries) bf16.push_back(entry.is_bf16 ? &entry.fields : nullptr);
  return bf16_of(bf16, entries[index].fields).value_or(index);
}

}  // namespace

std::vector<RecipeConvergence> study_convergence(const Group& group, const ConvergenceRules& rules) {
  std::vector<RecipeConvergence> entries = entries_of(group);
  const std::optional<double> uniform_loss = uniform_loss_of(entries);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RecipeConvergence& entry = entries[i];
    const std::size_t baseline = baseline_of(entries, i);
    const std::vector<LossCurve> curves = curves_of(entry);
    RecipeConvergence judged =
        entry.is_bf16
            ? assess_bf16(curves, uniform_loss)
            : compare_curves(
                  curves, entries[baseline].is_bf16 ? curves_of(entries[baseline]) : std::vector<LossCurve>{},
                  uniform_loss, rules);
    judged.fields = entry.fields;
    judged.members = entry.members;
    judged.is_bf16 = entry.is_bf16;
    judged.baseline = baseline;
    entry = std::move(judged);
  }
  for (RecipeConvergence& entry : entries) {
    const RecipeConvergence& bf16 = entries[entry.baseline];
    if (entry.final_loss)
      if (const auto floor = entry.members.front()->record.training->entropy_floor)
        entry.excess_loss = *entry.final_loss - *floor;
    if (bf16.is_bf16) add_ways_to_target(entry, bf16, rules.margin);
  }
  const bool any = std::any_of(entries.begin(), entries.end(),
                               [](const RecipeConvergence& e) { return e.final_loss || e.verdict; });
  return any ? entries : std::vector<RecipeConvergence>{};
}

}  // namespace precbench
