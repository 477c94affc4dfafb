// One case inside its process, and what can be said of it without running it.
#pragma once

#include <optional>
#include <string>

#include "bench/case.h"
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

/// Runs the case on the ranks of this process and fills every part of the record. What the case itself can
/// end in (unsupported, oom, diverged) is a status, with what was measured until then; throws InvalidInput
/// for bad input that only reading it shows, such as a text shorter than one sequence.
Record run_case(const Case& c);

/// GPUs that this process could use; 0 without a driver. Creates no CUDA context.
int visible_gpus();

}  // namespace precbench
