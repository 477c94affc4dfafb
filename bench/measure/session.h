// One case inside its process.
#pragma once

#include "bench/case/plan.h"
#include "bench/process/rendezvous.h"
#include "bench/process/step_board.h"
#include "results/record.h"

namespace precbench {

/// Runs this process's `share` of the case's ranks (the default: all of them), notes on `board` how far they
/// are, and fills every part of the record. What the case itself can end in (unsupported, oom, diverged) is a
/// status, with what was measured until then; throws InvalidInput for bad input that only reading it shows,
/// such as a text shorter than one sequence.
Record run_case(const Plan& plan, const NodeShare& share = {}, StepBoard* board = nullptr);

}  // namespace precbench
