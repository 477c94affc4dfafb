// Speed and its ratios, derived from what a record holds already.
#pragma once

#include <optional>
#include <vector>

#include "bench/measure/predict.h"
#include "results/record.h"

namespace precbench {

/// Fills `metrics` from timing, FLOPs, support and environment; all null for a recipe that is not native.
/// `ops`: of one step on one rank. `measured`: what the GPU gives in this run; null where unknown. Speeds are made from the
/// median step, or from the mean where the two lie far apart (results/step_time.h). A ratio above 1 stays in the record;
/// speed_doubts() warns of it. A ratio to the data sheet above 1.25 means that the measurement is wrong: the status becomes
/// crashed, and of the record only the metrics are dropped.
void fill_metrics(Record& record, const Plan& plan, const std::vector<OpCost>& ops,
                  const std::optional<OpRates>& measured, std::optional<double> energy_j_per_token);

/// A case that could not finish keeps what was known; its series stay for the reader, its metrics do not.
void fail(Record& record, Status status, const std::string& error);

}  // namespace precbench
