// Which cases of a sweep are finished: what the rows of an earlier start are worth here and now (sweep.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// Status by id.
using Rows = std::map<std::string, Status>;

inline bool is_failure(Status status) { return status == Status::crashed || status == Status::timeout; }

/// The rows of the file `path` that are answers to the grid's cases, and all those of other cases. Rows to be
/// replaced leave the file: of cases whose saved weights are gone, with `retry_failed` of those that failed;
/// the file as it was is then at spare_name(path). Rows of record schema 1 answer nothing: their ids do not say what
/// the names of the case stood for. What the user must know of the others goes to standard error, a line each.
Rows read_finished_rows(const std::string& path, const std::vector<Plan>& grid, bool retry_failed);

}  // namespace precbench
