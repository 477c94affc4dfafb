// The dry run: the unchanged step on a device that touches no data, with all books kept.
#pragma once

#include <array>
#include <vector>

#include "bench/plan.h"
#include "kernels/device.h"
#include "kernels/memory.h"
#include "results/record.h"

namespace precbench {

/// The books of one optimizer step on one rank.
struct DryRun {
  MemoryUse peak, highest;  ///< bytes by segment: at the moment of largest use, and each at its own highest
  std::int64_t extent = 0;  ///< bytes the arena of a real run needs
  std::vector<OpCost> ops;  ///< every op, collectives included, in order
  double model_flops() const;  ///< GEMMs and attention
};

/// `device`: whose run is predicted; null for one on which everything is native.
DryRun dry_run(const Plan& plan, const Device* device);

MemorySegments memory_segments(const MemoryUse& highest, std::int64_t peak);

/// Seconds that the ops take at least on hardware with these peaks (FLOP/s and bytes/s): each op at the peak
/// of its own precision or at memory bandwidth, whichever is longer. Collectives are not counted.
struct OpPeaks {
  double bf16_flops = 0, fp8_flops = 0, bytes = 0;
};
double speed_of_light(const std::vector<OpCost>& ops, const OpPeaks& peaks);

}  // namespace precbench
