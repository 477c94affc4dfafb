// The sweep runner: one process per case, one line per finished case in DIR/records.jsonl, and a second start
// that continues where the first one ended.
//
// A case is finished when its id has a row, whatever the row's status: unsupported, oom and diverged are
// results, and crashed or timeout would most likely repeat (--retry-failed runs those two again). A row of
// another kind of machine (another GPU or CPU model) is kept but does not count; one of another host of the
// same kind counts, and a message says so. A row does not count either if the weights that its case was to
// save are missing or could not be written, if its case lost a process of the sweep, or if it was oom on a GPU that
// its predicted peak fits. Cases in flight when a sweep is killed have no row and run again. A child that is killed
// from outside runs a second time at once.
//
// An interleaved sweep keeps the first run of a case in DIR/records.jsonl.first-runs until the second run has
// completed the row. When started again, it continues with the missing run.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/process/sweep_status.h"
#include "bench/sweep/disk_space.h"

namespace precbench {

class Coordinator;

struct SweepOptions {
  std::string out = "out";    ///< folder of records.jsonl; created if missing
  bool fresh = false;         ///< moves the old records aside (records.jsonl.1, .2, ...) and runs every case
  bool retry_failed = false;  ///< runs cases again whose row says crashed or timeout
  bool quiet = false;         ///< no progress lines
  bool summary = true;        ///< prints the number of cases by status on standard output
  bool interleave = false;    ///< runs the recipes of a setting A B B A; see interleave.h
  double timeout_s = 3600;    ///< of one case; 0: none
  /// Number of cases at a time, for sweeps that need losses and no speeds: their rows have none. All cases
  /// must have one rank; they take turns on `gpus` GPUs. Not with interleave or a coordinator.
  int at_once = 1, gpus = 1;
  std::vector<std::string> child = {"/proc/self/exe", "run-case"};  ///< command as in case_process.h
  FreeBytes free_bytes = free_bytes_at;  ///< a parameter so that tests can have a small disk
  Coordinator* coordinator = nullptr;  ///< if several processes take part in every case; else null
};

/// Runs what is not finished yet and returns the exit status (sweep_status.h). `device` must be chosen: not
/// auto. Throws InvalidInput if the folder cannot be written, another sweep is writing to it, the checkpoints of the
/// cases that are left do not fit the disk, or a case turns out to have bad input; finished rows are kept in all of
/// these.
int run_sweep(const std::vector<Plan>& grid, const SweepOptions& options);

/// Returns true if every case has a row that counts, without running any.
bool all_finished(const std::vector<Plan>& grid, const SweepOptions& options);

/// Moves the rows of earlier starts and the checkpoints of the grid's cases aside, as SweepOptions::fresh does.
void start_afresh(const std::vector<Plan>& grid, const std::string& out);

/// Divides the CPU's threads among `at_once` cases by setting OMP_NUM_THREADS of this process and its
/// children. Results do not depend on the number of threads.
void share_threads(int at_once);

/// Appends to DIR/records.jsonl under the lock of a sweep. Throws InvalidInput or CannotKeepRow.
void append_to_folder(const std::string& folder, const Record& record);

}  // namespace precbench
