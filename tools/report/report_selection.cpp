// Leaves out what a selection does not name. See report_selection.h.
#include "tools/report/report_selection.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <iterator>

#include "kernels/base/errors.h"
#include "results/record/printable.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& name) {
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(),
                                         [&](const std::string& pattern) { return matches(pattern, name); });
}

std::string name_in(const Record& record, const char* key) {
  return field_text(record.case_fields.value(key, nlohmann::ordered_json()));
}

void check_names(const std::vector<std::string>& patterns, const RecordSet& set, const char* key,
                 const char* flag) {
  Distinct names;
  for (const LocatedRecord& located : set.records) names.add(name_in(located.record, key));
  for (const std::string& pattern : patterns)
    if (std::none_of(names.texts.begin(), names.texts.end(),
                     [&](const std::string& name) { return matches(pattern, name); }))
      throw InvalidInput(fmt::format("{}: no record of \"{}\"; the records have {}", flag, printable(pattern),
                                     printable(names.joined())));
}

/// Removes groups without rows; those that train keep pointing to the remaining ones.
void remove_empty_groups(MachineRecords& machine) {
  std::vector<Group>& groups = machine.analysis.groups;
  std::vector<std::size_t> places;  // of the groups that train
  for (const TrainedGroup& one : machine.trained)
    places.push_back(static_cast<std::size_t>(one.group - groups.data()));
  std::vector<std::size_t> moved(groups.size());
  std::vector<Group> kept;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    moved[i] = kept.size();
    if (!groups[i].rows.empty()) kept.push_back(std::move(groups[i]));
  }
  groups = std::move(kept);
  for (std::size_t i = 0; i < places.size(); ++i) machine.trained[i].group = groups.data() + moved[places[i]];
}

void select(MachineRecords& machine, const Selection& selection) {
  for (Group& group : machine.analysis.groups) {
    const auto left_out = std::stable_partition(group.rows.begin(), group.rows.end(),
                                                [&](const Row& row) { return selection.has(row.record()); });
    std::move(left_out, group.rows.end(), std::back_inserter(machine.left_out));
    group.rows.erase(left_out, group.rows.end());
  }
  std::erase_if(machine.records, [&](const LocatedRecord* one) { return !selection.has(one->record); });
  for (TrainedGroup& one : machine.trained)
    std::erase_if(one.recipes, [&](const RecipeLosses& recipe) {
      return !selection.has(recipe.members.front()->record);
    });
  std::erase_if(machine.trained, [](const TrainedGroup& one) { return one.recipes.empty(); });
  remove_empty_groups(machine);
}

}  // namespace

bool Selection::has_model(const std::string& name) const { return any_matches(models, name); }

bool Selection::has_recipe(const std::string& name) const {
  return name == "bf16" || any_matches(recipes, name);
}

bool Selection::has(const Record& record) const {
  return has_model(name_in(record, "model")) && has_recipe(name_in(record, "recipe"));
}

void check_selection(const Selection& selection, const RecordSet& set) {
  check_names(selection.models, set, "model", "--model");
  check_names(selection.recipes, set, "recipe", "--recipe");
}

void rebase(ReportInput& input, const std::string& recipe) {
  check_names({recipe}, input.set, "recipe", "--base");
  const auto ratio = [](const std::optional<double>& own, const std::optional<double>& other) {
    return own && other && *other > 0 ? std::optional(*own / *other) : std::nullopt;
  };
  for (MachineRecords& machine : input.machines)
    for (Group& group : machine.analysis.groups) {
      const auto base = std::find_if(group.rows.begin(), group.rows.end(), [&](const Row& row) {
        return row.comparable() && recipe_of(row) == recipe;
      });
      const Row none, known = base == group.rows.end() ? none : *base;
      for (Row& row : group.rows) {
        row.speedup = row.comparable() ? ratio(row.tokens_per_s, known.tokens_per_s) : std::nullopt;
        row.memory_ratio = row.comparable() ? ratio(row.peak_memory, known.peak_memory) : std::nullopt;
      }
      std::stable_partition(group.rows.begin(), group.rows.end(),
                            [&](const Row& row) { return recipe_of(row) == recipe; });
    }
}

void select(ReportInput& input, const Selection& selection) {
  if (selection.empty()) return;
  for (MachineRecords& machine : input.machines) select(machine, selection);
  std::erase_if(input.machines, [](const MachineRecords& machine) { return machine.records.empty(); });
  std::erase_if(input.cards, [&](const StudyCard& card) { return !selection.has(*card.fork); });
  std::erase_if(input.records, [&](const LocatedRecord* one) { return !selection.has(one->record); });
}

}  // namespace precbench
