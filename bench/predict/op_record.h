// Ops of a step as a record holds them.
#pragma once

#include <cstdint>

#include "kernels/device/ops.h"
#include "results/record/record.h"

namespace precbench {

/// Returns the entry of `calls` calls with the costs of `one`, which took `ms` together.
OpRecord op_record(const OpCost& one, std::int64_t calls, double ms);

}  // namespace precbench
