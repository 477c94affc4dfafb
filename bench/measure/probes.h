// What is measured of a case beside its samples: the fidelity probe before the first step, and once the samples are
// taken, while the model is trained further unseen, all the others.
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

/// What the fullest of a process's GPUs has left for an arena, where a fidelity probe may have to know; else null.
std::optional<std::int64_t> room_for_arena(const Plan& plan, const NodeShare& share);

/// Before the first step, of the weights that it will start from: the fidelity probe, where the plan asks for it. Accounts
/// of memory begin after it.
void probe_fidelity(Rank& rank, const Plan& plan, const DataSource& data, ReferencePlace place,
                    RecordBuilder& builder, StepBoard* board);

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
