// Where a record was made: source, build, host, GPU and library versions.
#pragma once

#include <optional>

#include "results/record.h"

namespace precbench {

/// OpenMP threads of all ranks together: OMP_NUM_THREADS, else the machine's.
int openmp_threads();

/// Everything but the GPU's part, which is null unless there is a GPU `ordinal`. Never throws because of a
/// GPU: a record must be written whatever state a crash has left it in.
Environment describe_environment(int threads, int ordinal);

/// Peak resident set of this process in bytes; null where the system does not tell.
std::optional<std::int64_t> peak_resident_bytes();

}  // namespace precbench
