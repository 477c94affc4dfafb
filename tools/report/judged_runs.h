// Runs from scratch that were judged over their seeds, as one recipe's evidence beside what others claim of its loss.
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

/// "worse, +0.0024 nats [+0.0011, +0.0038] (3 seeds, 9200 steps)"
std::string outcome_text(const JudgedRun& run);

}  // namespace precbench
