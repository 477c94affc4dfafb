// Where a record was made: source, build, host, GPU and library versions.
#pragma once

#include <optional>

#include "results/record.h"

namespace precbench {

/// Everything but the GPU's part, which is null unless `ordinal` >= 0.
Environment describe_environment(int threads, int ordinal);

/// Peak resident set of this process in bytes; null where the system does not tell.
std::optional<std::int64_t> peak_resident_bytes();

}  // namespace precbench
