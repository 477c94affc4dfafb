// `precbench sweep --dry-run`: memory and FLOPs of every case, without running any.
#pragma once

#include <optional>
#include <vector>

#include "bench/case/plan.h"
#include "bench/cli/fit.h"

namespace precbench {

/// Prints a table: the fields that vary, the largest peak memory of any GPU with its largest segments, and
/// model FLOPs per token and per step. If the local GPU runs a recipe natively and its peak rates are known,
/// also a lower bound of the step time. With `limit` also whether each case fits that GPU, and for one that
/// does not the nearest change that would. Lines below say why a recipe needs more memory than BF16. Returns false
/// if no case can run.
bool print_dry_run(const std::vector<Plan>& grid, const std::optional<MemoryLimit>& limit);

/// Prints the same as JSON, without the changes.
bool print_dry_run_json(const std::vector<Plan>& grid, const std::optional<MemoryLimit>& limit);

}  // namespace precbench
