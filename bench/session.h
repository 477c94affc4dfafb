// One case inside its process, and what can be said of it without running it.
#pragma once

#include <optional>
#include <string>

#include "bench/case.h"
#include "bench/nodes.h"
#include "bench/step_board.h"
#include "results/record.h"

namespace precbench {

/// What the dry device says about a case. Nothing is computed and no data is read.
struct Prediction {
  MemorySegments memory;                   ///< bytes on the rank that needs most
  double flops_per_token = 0;              ///< model FLOPs, as in Flops
  double flops_per_step = 0;               ///< all ranks and accumulation steps together
  std::optional<double> seconds_per_step;  ///< at the peaks of a known GPU
  std::string unsupported;                 ///< why the case cannot run; empty if it can
};

/// Throws InvalidInput for what validate() refuses.
Prediction predict(const Case& c);

/// Runs this process's `share` of the case's ranks (the default: all of them), notes on `board` how far they
/// are, and fills every part of the record. What the case itself can end in (unsupported, oom, diverged) is a
/// status, with what was measured until then; throws InvalidInput for bad input that only reading it shows,
/// such as a text shorter than one sequence.
Record run_case(const Case& c, const NodeShare& share = {}, StepBoard* board = nullptr);

/// GPUs that this process could use; 0 without a driver. Creates no CUDA context.
int visible_gpus();

}  // namespace precbench
