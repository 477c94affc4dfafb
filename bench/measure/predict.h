// The dry run: the unchanged step on a device that touches no data, with everything accounted for.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/datasheet.h"
#include "bench/step/fidelity.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "results/record.h"

namespace precbench {

/// The accounts of one optimizer step on one rank.
struct DryRun {
  MemoryUse peak, highest;  ///< bytes by segment: at the moment of largest use, and each at its own highest
  std::int64_t extent = 0;  ///< bytes the arena of a real run needs, a fidelity probe included
  std::vector<OpCost> ops;  ///< every op, collectives included, in order
  std::int64_t probe = 0;   ///< bytes at the fidelity probe's moment of largest use; 0: there is none
  ReferencePlace reference = ReferencePlace::device;  ///< of the fidelity probe
  ExpertTraffic experts;                              ///< bytes to other ranks' experts, and back
  /// The most that is in use at one time.
  std::int64_t most() const { return std::max(peak.total(), probe); }
  double model_flops() const;  ///< GEMMs and attention
};

/// `device`: whose run is predicted; null for one on which everything is native. `room`: bytes that it has for the arena,
/// beyond which a fidelity probe leaves its reference on the host; null: any number. Throws OutOfMemory for a rank beyond
/// what any machine has, 32 PiB.
DryRun dry_run(const Plan& plan, const Device* device, std::optional<std::int64_t> room = std::nullopt);

/// Bytes that saving weights and quantization statistics need beyond the step's own.
std::int64_t watching_bytes(const Plan& plan);

MemorySegments memory_segments(const MemoryUse& highest, std::int64_t peak);

/// Seconds that the ops take at least on hardware with these peaks (FLOP/s and bytes/s): each op at the peak
/// of its own precision or at memory bandwidth, whichever is longer. Collectives are not counted.
struct OpRates {
  double bf16_flops = 0, fp8_flops = 0, bytes = 0, fp4_flops = 0;
};
double speed_of_light(const std::vector<OpCost>& ops, const OpRates& peaks);
/// Return true if one of the recipe's GEMMs multiplies two operands in FP4, or two in FP8.
bool has_fp4_gemm(const Recipe& recipe);
bool has_fp8_gemm(const Recipe& recipe);
/// Returns the data-sheet rates for the recipe's operations; null if it needs an FP8 or FP4 peak that `peak` lacks.
std::optional<OpRates> op_rates(const DatasheetRates& peak, const Recipe& recipe);

/// How the three GEMMs run on a device; of several recipes of a run the weakest.
Support support_of(const Plan& plan, const Device& device);

/// What can be said of a case without running it. Nothing is computed and no data is read.
struct Prediction {
  MemorySegments memory;                   ///< bytes on the rank that needs most
  ExpertTraffic experts;                   ///< bytes of a rank to other ranks' experts in a step, and back
  double flops_per_token = 0;              ///< model FLOPs, as in Flops
  double flops_per_step = 0;               ///< all ranks and accumulation steps together
  std::optional<double> seconds_per_step;  ///< at least: the speed of light, without collectives
  std::string unsupported;                 ///< why the case cannot run; empty if it can
};

/// Whose steps are predicted.
struct KnownGpu {
  const Device& device;
  std::string name;  ///< as the driver says it
};

/// There is a time where `gpu` runs the recipe natively and its peaks are known.
Prediction predict(const Plan& plan, const KnownGpu* gpu = nullptr);

}  // namespace precbench
