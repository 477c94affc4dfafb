// `precbench sweep --dry-run`: memory and FLOPs of every case, without running any.
#pragma once

#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// Prints a table: the fields that vary, the largest peak memory of any GPU with its largest segments, and
/// model FLOPs per token and per step. If the local GPU runs a recipe natively and its peak rates are known,
/// also a lower bound of the step time.
void print_dry_run(const std::vector<Plan>& grid);

}  // namespace precbench
