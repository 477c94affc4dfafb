// Runs from scratch that have a verdict over their seeds. They are shown next to published claims about the
// loss, and next to a study's forks of the same recipe.
#pragma once

#include <string>
#include <vector>

#include "tools/report/sections.h"

namespace precbench {

struct JudgedRun {
  const MachineRecords* machine;
  const RecipeConvergence* recipe;
  const RecipeConvergence* bf16;  ///< baseline of the comparison
  Row row;                        ///< case fields only

  const Record& record() const { return recipe->members.front()->record; }
};

/// Returns the judged runs of all machines, in group order.
std::vector<JudgedRun> judged_runs(const ReportInput& input);

/// Returns the model's age at the end of the runs: "at 19 tokens per parameter".
std::string age_words(const RecipeConvergence& recipe);
/// Returns verdict and age: "worse at 19 tokens per parameter". Without a common number of steps, as after a
/// divergence, returns the verdict alone.
std::string verdict_words(const RecipeConvergence& recipe);

/// Returns "worse, +0.0024 nats [+0.0011, +0.0038] (3 seeds, 9200 steps, 19 tokens per parameter)".
std::string outcome_text(const JudgedRun& run);

/// Returns the final held-out loss minus BF16's of the same seed, with its 95% interval; "-" without one.
std::string held_out_difference_text(const RecipeConvergence& recipe, const RecipeConvergence& bf16);

/// Returns the longest run of a card's model and recipe with the forks' master dtype, provided that it is
/// longer than the forks. A diverged run takes precedence. Null if there is none.
const JudgedRun* long_run_of(const std::vector<JudgedRun>& runs, const StudyCard& card);

/// Returns the settings in which a run differs from the forks: "lr 0.001, of the forks 0.0003".
std::string long_run_differences(const JudgedRun& run, const StudyCard& card);

}  // namespace precbench
