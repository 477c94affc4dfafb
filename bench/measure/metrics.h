// Derives speed and its ratios from the rest of a record.
#pragma once

#include <optional>
#include <vector>

#include "bench/predict/predict.h"
#include "results/record/record.h"

namespace precbench {

/// Fills `metrics` from timing, FLOPs, support and environment; all null for a recipe that does not run
/// natively.
/// `ops`: of one step on one rank. `measured`: rates of the GPU in this run, null if unknown. Speeds use the
/// median step, or the mean where the two lie far apart (results/record/step_time.h). A ratio above 1 stays in the
/// record; speed_doubts() warns of it. A ratio above 1.25 of the data sheet means that the measurement is
/// wrong: the status becomes crashed and the metrics are dropped, but nothing else.
void fill_metrics(Record& record, const Plan& plan, const std::vector<OpCost>& ops,
                  const std::optional<OpRates>& measured, std::optional<double> energy_j_per_token);

/// Sets status and error of a case that could not finish. Keeps what was measured but drops the metrics.
void fail(Record& record, Status status, const std::string& error);

}  // namespace precbench
