// Where a record was made: source, build, host, GPU and library versions.
#pragma once

#include <optional>
#include <string>

#include "bench/case/plan.h"
#include "results/record.h"

namespace precbench {

/// Returns the OpenMP threads of all ranks together: OMP_NUM_THREADS, else as many as this process may run at one time by its
/// affinity mask and the CPU quota of its control groups.
int openmp_threads();

/// gethostname().
std::string host_name();

/// Everything but the GPU's part, which is null unless there is a GPU `first_gpu`; `gpus`: how many the case
/// has from there on. Never throws because of a GPU: a record must be written whatever state a crash has left
/// it in.
Environment describe_environment(int threads, int first_gpu, int gpus);

/// The row of a case that did not get as far as making its own. It ran where we are.
Record failed_record(const Plan& plan, Status status, const std::string& error);

/// DatasheetRates resident set of this process in bytes; null where the system does not tell.
std::optional<std::int64_t> peak_resident_bytes();

}  // namespace precbench
