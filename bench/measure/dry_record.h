// The record of a case that did not run, from its dry run: what readers of records need to predict it.
#pragma once

#include "bench/case/plan.h"
#include "results/record/record.h"

namespace precbench {

/// Returns the definition, FLOPs, predicted memory, ops and collectives of a case; ops have counts and no
/// times. Status `unsupported`, with the reason in `error`, if the case cannot run.
Record dry_record(const Plan& plan);

}  // namespace precbench
