// Summary of a sweep's cases that each worker sends to process 0 once both have authenticated: processes that
// were started with different arguments learn it, and which argument differs, before any case runs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/case.h"

namespace precbench {

/// Returns {"sweep": digest of all cases in any order, "cases": their number, "values": {field: [text]}}, with
/// the values that differ from a field's default in some case.
nlohmann::ordered_json summarize_sweep(const std::vector<Case>& grid);

/// Returns how the summary `theirs`, received from `process`, differs from process 0's `own`: "--lr is 1 in process 1
/// and 0.001 in process 0"; null if the sweeps are the same. `theirs` is untrusted.
std::optional<std::string> sweep_difference(const nlohmann::ordered_json& own,
                                            const nlohmann::ordered_json& theirs, int process);

/// Returns how the case that process 0 orders, which is not in this process's `grid`, differs from the most similar
/// case there. `here`: index of this process.
std::string case_difference(const Case& ordered, const std::vector<Case>& grid, int here);

}  // namespace precbench
