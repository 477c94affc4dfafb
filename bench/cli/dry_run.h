// `precbench sweep --dry-run`: the grid with what each case would need, without running any.
#pragma once

#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// A table on standard output: the fields that vary, memory of the fullest GPU with its largest segments,
/// model FLOPs per token and per step, and where the GPU here runs a recipe natively and its peaks are known
/// the least time of a step.
void print_dry_run(const std::vector<Plan>& grid);

}  // namespace precbench
