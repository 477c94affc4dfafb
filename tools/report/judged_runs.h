// Runs from scratch that were judged over their seeds, as one recipe's evidence: beside what others claim of its loss, and
// beside a study's forks of it.
#pragma once

#include <string>
#include <vector>

#include "tools/report/sections.h"

namespace precbench {

struct JudgedRun {
  const MachineRecords* machine;
  const RecipeConvergence* recipe;
  const RecipeConvergence* bf16;  ///< with which it was compared
  Row row;                        ///< its fields alone

  const Record& record() const { return recipe->members.front()->record; }
};

/// Of every machine, in the order of their groups.
std::vector<JudgedRun> judged_runs(const ReportInput& input);

/// "at 19 tokens per parameter": what the runs had seen at their end.
std::string age_words(const RecipeConvergence& recipe);
/// "worse at 19 tokens per parameter": a verdict is about a model of an age. Of runs that share no number of steps, as those
/// that diverged, the verdict alone.
std::string verdict_words(const RecipeConvergence& recipe);

/// "worse, +0.0024 nats [+0.0011, +0.0038] (3 seeds, 9200 steps, 19 tokens per parameter)"
std::string outcome_text(const JudgedRun& run);

/// Of text that training did not see, at the end, minus bf16's of the same seed, with its 95% interval; "-" without.
std::string held_out_difference_text(const RecipeConvergence& recipe, const RecipeConvergence& bf16);

/// The run of a card's model and recipe, with its weights kept in what the forks' are, that went on longest, if it went on
/// longer than they did; one that diverged before any other. Null if there is none.
const JudgedRun* long_run_of(const std::vector<JudgedRun>& runs, const StudyCard& card);

/// What its setting and the forks' do not share: "lr 0.001, of the forks 0.0003".
std::string long_run_differences(const JudgedRun& run, const StudyCard& card);

}  // namespace precbench
