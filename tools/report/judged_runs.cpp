// Verdicts over seeds, in words. See judged_runs.h.
#include "tools/report/judged_runs.h"

#include <fmt/format.h>

namespace precbench {

std::vector<JudgedRun> judged_runs(const ReportInput& input) {
  std::vector<JudgedRun> all;
  for (const MachineRecords& machine : input.machines)
    for (const Study& study : machine.studies)
      for (const RecipeConvergence& recipe : study.recipes)
        if (recipe.verdict && !recipe.is_bf16)
          all.push_back({&machine, &recipe, &study.recipes[recipe.baseline], row_of(recipe)});
  return all;
}

std::string outcome_text(const JudgedRun& run) {
  const RecipeConvergence& judged = *run.recipe;
  if (!judged.delta) return fmt::format("{}: {}", name_of(*judged.verdict), judged.reason);
  const auto& interval = judged.delta_interval;
  return fmt::format("{}, {:+.4f} nats{} ({}, {} steps)", name_of(*judged.verdict), *judged.delta,
                     interval ? fmt::format(" [{:+.4f}, {:+.4f}]", interval->low, interval->high) : "",
                     plural(static_cast<std::size_t>(judged.seeds), "seed"), judged.steps);
}

}  // namespace precbench
