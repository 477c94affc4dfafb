// Notes of a check: what changed beside the program, what is stale, and what the verdicts do not cover.
#pragma once

#include <string>
#include <vector>

#include "tools/gate/gate.h"
#include "tools/gate/gate_match.h"
#include "tools/text/distinct.h"

namespace precbench {

/// Names the commits of both sides, and says if the run is of the baseline's own commit, contains its
/// records, or is older.
void note_commits(const std::vector<Match>& matches, Distinct& notes);

/// Names changed software, and another board, memory size or power limit under the same GPU name: no failure,
/// but the first thing to know about one.
void note_environment(const Match& match, Distinct& notes);

/// Names changes of quantities that no verdict covers: kernels, energy per token, bytes in use as the driver
/// counts them, and case fields that the baseline does not have.
void note_not_judged(const Match& match, const std::string& label, const GateRules& rules, Distinct& notes);

}  // namespace precbench
