// Decides which cases of a sweep are finished, from the rows of earlier starts, this machine and existing
// files (sweep.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// Row statuses by id.
using Rows = std::map<std::string, Status>;

inline bool is_failure(Status status) { return status == Status::crashed || status == Status::timeout; }

/// Returns true if the row says that its case lost a process of the sweep: no result, so that the case runs again.
bool lost_a_process(const Record& record);

/// Returns true if a case was out of GPU memory although its predicted peak is at most nine tenths of the GPU's: other
/// processes probably had the rest, so that the row is no result of the case.
bool lacked_memory_beside_others(const Record& record);

/// Returns the environment that a case on this kind of device would have if it ran now.
using LocalEnvironment = std::function<Environment(const std::string& device)>;

/// Asks this machine.
Environment local_environment(const std::string& device);

/// Returns the rows of the file `path` that count as results of the grid's cases, and all rows of other
/// cases. Removes rows to be replaced from the file: cases whose saved weights are gone, that could not write a
/// file, lost a process of the sweep or lacked memory beside others and, with `retry_failed`, failed ones; the original
/// file is then kept at spare_name(path). Rows of record schema 1 do not count, because their ids do not cover what the
/// case's names stood for. Prints a line on standard error for each kind of row that is ignored. `local`: replaced in
/// tests, which then have a GPU.
Rows read_finished_rows(const std::string& path, const std::vector<Plan>& grid, bool retry_failed,
                        const LocalEnvironment& local = local_environment);

}  // namespace precbench
