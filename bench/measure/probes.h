// What is measured of a case once its samples are taken: from here on the model is trained further, unseen.
#pragma once

#include <optional>
#include <vector>

#include "bench/measure/predict.h"
#include "bench/measure/record_builder.h"
#include "bench/process/rendezvous.h"
#include "bench/process/step_board.h"
#include "bench/step/rank.h"
#include "bench/step/step_runner.h"
#include "results/record.h"

namespace precbench {

/// One profiled step, the bandwidth of each kind of collective alone, and what quantization does to each tensor, into
/// the record. Every rank calls it after the same `step`. `collectives`: what counts() was after one step. `board`: where
/// to note what the rank is at; null: nowhere.
void run_probes(Rank& rank, StepRunner& runner, std::int64_t step, const Plan& plan,
                const std::vector<CollectiveCount>& collectives, RecordBuilder& builder, StepBoard* board);

/// What this process's first GPU gives today, once no rank holds it any more; null where the case is not native on a GPU,
/// or where it has no memory left, which becomes a warning.
std::optional<OpRates> probe_gpu(const Plan& plan, const NodeShare& share, const Record& record,
                                 RecordBuilder& builder, StepBoard* board);

}  // namespace precbench
