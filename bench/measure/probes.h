// Measurements outside the samples: the fidelity probe before the first step, and all others after the
// samples, during further training that is not recorded.
#pragma once

#include <optional>
#include <vector>

#include "bench/measure/record_builder.h"
#include "bench/predict/predict.h"
#include "bench/process/rendezvous.h"
#include "bench/process/step_board.h"
#include "bench/step/rank.h"
#include "bench/step/step_runner.h"
#include "results/record/record.h"

namespace precbench {

/// Returns the bytes available for an arena on the fullest of a process's GPUs, if a fidelity probe needs to
/// know; else null.
std::optional<std::int64_t> bytes_for_arena(const Plan& plan, const NodeShare& share);

/// Runs the fidelity probe, if the plan asks for it, on the weights before the first step. The accounting of
/// memory starts after it.
void probe_fidelity(Rank& rank, const Plan& plan, const DataSource& data, ReferencePlace place,
                    RecordBuilder& builder, StepBoard* board);

/// Adds to the record one profiled step, the bandwidth of each collective alone, and the quantization error
/// of each tensor. Every rank calls it after the same `step`. `collectives`: counts() after one step.
/// `board`: where to note the rank's current work, or null.
void run_probes(Rank& rank, StepRunner& runner, std::int64_t step, const Plan& plan,
                const std::vector<CollectiveCount>& collectives, RecordBuilder& builder, StepBoard* board);

/// Measures the rates of this process's first GPU, once no rank holds it any more. Null if the case does not
/// run natively on a GPU or runs beside others, or if the GPU has no memory left, which adds a warning.
std::optional<OpRates> probe_gpu(const Plan& plan, const NodeShare& share, const Record& record,
                                 RecordBuilder& builder, StepBoard* board);

}  // namespace precbench
