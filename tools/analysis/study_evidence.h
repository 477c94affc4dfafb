// Forks of a study as evidence for a verdict: differences of final losses, paired by trunk, age and seed.
#pragma once

#include <optional>
#include <string>

#include "tools/analysis/fork_verdict.h"
#include "tools/analysis/study_rows.h"

namespace precbench {

/// Returns the differences of `cells`, forks of the recipe `name`, from the BF16 forks of the same state and
/// data.
ForkEvidence evidence_of(const StudyRows& rows, const std::string& name, const StudyCells& cells);
ForkEvidence evidence_of(const StudyRows& rows, const std::string& recipe);

/// Returns the differences of a recipe's forks from the incumbent's of the same state and data.
ForkEvidence evidence_against(const StudyRows& rows, const std::string& recipe, const std::string& incumbent);

/// Returns the error text if every fork of the recipe was unsupported; null if any could run.
std::optional<std::string> fork_unsupported_reason(const StudyRows& rows, const std::string& recipe);

}  // namespace precbench
