// The sweep runner: one process per case, one line per finished case in DIR/records.jsonl, and a second start
// that goes on where the first one ended.
//
// A case is finished when its id has a row, whatever the row's status: unsupported, oom and diverged are
// answers, and crashed or timeout would most likely come again (--retry-failed runs those two once more). A
// row of another kind of machine (another GPU; on the CPU another processor) stays but is no answer here; one
// of another host of this kind is, and is told. Nor is a row an answer whose weights were to be saved and are
// not there.
// What a killed sweep had in flight has no row and is done again. A child that something outside killed is
// run a second time at once.
//
// An interleaved sweep keeps the first run of a case in DIR/records.jsonl.first-runs until the second has
// made the row. Started again, it goes on with the run that is missing.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/process/sweep_status.h"

namespace precbench {

class Coordinator;

struct SweepOptions {
  std::string out = "out";    ///< folder of records.jsonl; made if missing
  bool fresh = false;         ///< move the old records aside (records.jsonl.1, .2, ...) and do every case
  bool retry_failed = false;  ///< do cases again whose row says crashed or timeout
  bool quiet = false;         ///< no progress lines
  bool summary = true;        ///< on standard output, how many cases ended how
  bool interleave = false;    ///< run the recipes of a setting A B B A; see interleave.h
  double timeout_s = 3600;    ///< of one case; 0: none
  /// Cases at one time, where losses are wanted and no speeds: their rows have none. Cases of one rank each, which take
  /// turns on `gpus` GPUs. Not with interleave or a coordinator.
  int at_once = 1, gpus = 1;
  std::vector<std::string> child = {"/proc/self/exe",
                                    "run-case"};  ///< the command that case_process.h describes
  Coordinator* coordinator =
      nullptr;  ///< of several processes that take part in every case; null: this one alone
};

/// Runs what is not finished yet and returns how it ended (sweep_status.h). `device` must be
/// chosen: not auto. Throws InvalidInput if the folder cannot be written, another sweep is writing to it, or a
/// case turns out to have bad input; finished rows stay in each of these.
int run_sweep(const std::vector<Plan>& grid, const SweepOptions& options);

/// Gives each of so many cases at one time its part of the CPU's threads, by OMP_NUM_THREADS of this process and those that
/// it starts; bits do not depend on how many a case has.
void share_threads(int at_once);

/// Appends to DIR/records.jsonl under the same lock as a sweep. Throws InvalidInput or CannotKeepRow.
void append_to_folder(const std::string& folder, const Record& record);

}  // namespace precbench
