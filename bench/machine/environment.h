// Environment of a record: source, build, host, GPU and library versions.
#pragma once

#include <optional>
#include <string>

#include "bench/case/plan.h"
#include "results/record/record.h"

namespace precbench {

/// Returns the number of OpenMP threads of all ranks together: OMP_NUM_THREADS, or else the number that this
/// process may run at a time according to its affinity mask and the CPU quota of its control groups.
int openmp_threads();

/// Returns gethostname().
std::string host_name();

/// Returns the environment. The GPU's part is null unless a GPU `first_gpu` exists; `gpus`: number of GPUs of
/// the case from there on. GPU errors never throw: a record must be written in whatever state a crash has
/// left the GPU.
Environment describe_environment(int threads, int first_gpu, int gpus);

/// Returns the row of a case that did not get as far as making its own, with this process's environment.
Record failed_record(const Plan& plan, Status status, const std::string& error);

/// Returns the peak resident set of this process in bytes; null if unknown.
std::optional<std::int64_t> peak_resident_bytes();

}  // namespace precbench
