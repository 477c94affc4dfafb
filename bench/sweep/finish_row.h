// Completes a record before it is appended as a row.
#pragma once

#include "bench/case/plan.h"
#include "results/record/record.h"

namespace precbench {

/// Returns the record as a row: with a warning for each doubt about its speed (results/record/step_time.h), and
/// without values that readers would refuse (results/record/readable_record.h). A record that cannot be read back at
/// all becomes a crashed row with the reason.
Record finish_row(const Plan& plan, Record record);

}  // namespace precbench
