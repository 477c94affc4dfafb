// Runs one case inside its process.
#pragma once

#include "bench/case/plan.h"
#include "bench/process/rendezvous.h"
#include "bench/process/step_board.h"
#include "results/record/record.h"

namespace precbench {

/// Runs this process's `share` of the case's ranks (default: all of them), notes their progress on `board`,
/// and fills every part of the record. Outcomes of the case itself (unsupported, oom, diverged) become a
/// status, with what was measured until then. Throws InvalidInput for bad input that only reading reveals,
/// such as a text shorter than one sequence.
Record run_case(const Plan& plan, const NodeShare& share = {}, StepBoard* board = nullptr);

}  // namespace precbench
