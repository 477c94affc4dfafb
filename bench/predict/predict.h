// The dry run: the unchanged step on a device that touches no data and accounts for work and memory.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/datasheet.h"
#include "bench/predict/trace.h"
#include "bench/step/fidelity.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "results/record/record.h"

namespace precbench {

/// Work and memory of one optimizer step on one rank.
struct DryRun {
  MemoryUse peak, highest;  ///< bytes by segment: at the peak of total use, and each at its own peak
  std::int64_t extent = 0;  ///< bytes that the arena of a real run needs, including a fidelity probe
  Trace trace;              ///< ops and collectives of the step
  std::int64_t probe = 0;   ///< bytes at the peak of the fidelity probe; 0 without one
  ReferencePlace reference = ReferencePlace::device;  ///< place of the fidelity probe's BF16 gradient
  ExpertTraffic experts;                              ///< bytes to other ranks' experts and back
  /// Returns the peak over step and probe, bytes.
  std::int64_t most() const { return std::max(peak.total(), probe); }
  double model_flops() const;  ///< GEMMs and attention
  /// Returns every op in order, including collectives.
  std::vector<OpCost> ops() const { return trace.calls(); }
};

/// `device`: device whose run is predicted; null for one on which everything is native. `available`: bytes
/// available to the arena, beyond which a fidelity probe keeps its reference on the host; null if unlimited.
/// Throws OutOfMemory for a rank that needs more than any machine has, 32 PiB.
DryRun dry_run(const Plan& plan, const Device* device, std::optional<std::int64_t> available = std::nullopt);

/// Returns the bytes that saving weights and quantization statistics need in addition to the step's.
std::int64_t watching_bytes(const Plan& plan);

MemorySegments memory_segments(const MemoryUse& highest, std::int64_t peak);

/// Returns a lower bound of the seconds of the ops on hardware with these peaks (FLOP/s and bytes/s): each op
/// takes the longer of its FLOPs at the peak of its precision and its bytes at memory bandwidth. Collectives
/// are not counted.
struct OpRates {
  double bf16_flops = 0, fp8_flops = 0, bytes = 0, fp4_flops = 0;
};
double speed_of_light(const std::vector<OpCost>& ops, const OpRates& peaks);
/// Return true if one of the recipe's GEMMs multiplies two operands in FP4, or two in FP8.
bool has_fp4_gemm(const Recipe& recipe);
bool has_fp8_gemm(const Recipe& recipe);
/// Returns the data-sheet rates for the recipe; null if it needs an FP8 or FP4 peak that `peak` lacks.
std::optional<OpRates> op_rates(const DatasheetRates& peak, const Recipe& recipe);

/// Returns how the three GEMMs run on a device: the weakest path among all recipes of the run.
Support support_of(const Plan& plan, const Device& device);

/// Properties of a case that are known without running it: nothing is computed and no data is read.
struct Prediction {
  MemorySegments memory;       ///< bytes on the rank that needs most
  MemoryUse at_peak;           ///< bytes by segment when a step needs most, without a fidelity probe
  ExpertTraffic experts;       ///< bytes of a rank to other ranks' experts in a step, and back
  double flops_per_token = 0;  ///< model FLOPs, as in Flops
  double flops_per_step = 0;   ///< all ranks and accumulation steps together
  std::optional<double> seconds_per_step;  ///< lower bound: the speed of light, without collectives
  std::optional<std::string> unsupported;  ///< reason why the case cannot run; null if it can
};

/// GPU whose steps are predicted.
struct KnownGpu {
  const Device& device;
  std::string name;  ///< as reported by the driver
};

/// Predicts a case. The time is known only if `gpu` runs the recipe natively and its peaks are known.
Prediction predict(const Plan& plan, const KnownGpu* gpu = nullptr);

}  // namespace precbench
