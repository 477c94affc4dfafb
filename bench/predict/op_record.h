// Ops of a step as a record holds them.
#pragma once

#include <cstdint>

#include "kernels/device/ops.h"
#include "results/record/record.h"

namespace precbench {

/// Returns the entry of `calls` calls with the costs of `one`, which took `ms` together.
OpRecord op_record(const OpCost& one, std::int64_t calls, double ms);
/// Returns the cost of one call, as far as rates depend on it. Its name lives as long as the record.
OpCost op_cost(const OpRecord& record);

}  // namespace precbench
