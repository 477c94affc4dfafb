// Builds the record of a case from the measurements that its ranks deliver.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/verification.h"
#include "bench/predict/predict.h"
#include "bench/process/rendezvous.h"
#include "bench/step/checkpoint.h"
#include "kernels/comm/comm.h"
#include "kernels/gpu/profiler.h"
#include "models/data/data.h"
#include "results/record/record.h"

namespace precbench {

/// Measurements taken over the steps that are samples.
struct SamplingMeasurement {
  std::optional<double> wall_ms;  ///< per step, on the host's clock
  std::optional<double> cpu_ms, cpu_wait_ms;  ///< per step, of this process; see Timing
  std::optional<Telemetry> telemetry;
  std::optional<double> energy_j_per_token;
};

/// Sets what follows from the model and the length of a sequence: FLOPs, and parameter counts with experts.
void set_model_size(Record& record, const Plan& plan);

class RecordBuilder {
 public:
  /// `share`: this process's part of the ranks. All three must outlive the builder.
  RecordBuilder(const Plan& plan, const NodeShare& share, Record& record)
      : plan_(plan), share_(share), record_(record) {}

  /// Records what is known before anything runs, and the predicted step. Throws Unsupported if the device cannot run the recipe.
  void describe(const Device& device, const DataSource& data, const DryRun& accounts);

  // The functions below may be called by several ranks at once. Steps, timing, memory and what follows them
  // are rank 0's.

  void warn(const std::vector<std::string>& lines);
  void add_step(double loss, double grad_norm, double learning_rate);
  /// Takes over the curve of an earlier start of the case from the checkpoint at `path`.
  void continue_curve(const TrainingCurve& curve, const std::string& path);
  void add_evaluation(const Evaluation& evaluation);
  void add_fidelity(std::vector<Fidelity> fidelity);
  void add_sensitivity(SensitivityRecord sensitivity);
  /// Call after the first step, in which every collective has run once, whether later steps are replayed or
  /// not.
  void add_communication(const Comm& comm, const DryRun& accounts);
  /// Records fingerprints of this rank's part of every parameter, before and after the first step.
  void add_parameters(const std::vector<std::uint64_t>& before, const std::vector<std::uint64_t>& after);
  void add_timing(Timing timing, const SamplingMeasurement& sampling);
  /// `driver`: as Memory::driver. The device's workspace is outside the arena.
  void add_memory(const MemorySegments& arena, std::int64_t workspace, std::optional<std::int64_t> driver);
  /// Records which kernels ran attention and the GEMMs of linear layers, and on a GPU whether `verification`, null if
  /// there is none, has verified them.
  void add_kernels(const Device& device, const Verification* verification = nullptr);
  /// Records what the routers of rank 0 did in its last step, and the predicted traffic.
  void add_routing(const Routers& routers, const Device& device, const ExpertTraffic& predicted);
  void add_breakdown(const StepProfiler::Result& profile);
  /// `rates`: bytes per second of each kind of collective; null if its buffers did not fit.
  void add_bus_rates(const std::vector<std::optional<double>>& rates);
  void add_quantization(std::vector<QuantizationStats> statistics);
  /// Records the profiled step's casts and the errors of transposed FP8 data, for recipes that could run with
  /// --flow.
  void add_flow(const StepProfiler::Result& profile, std::vector<Conversion> conversion);

  /// Completes the record after all ranks have finished. `rates`: measured rates of the GPU.
  void finish(const DryRun& accounts, const std::optional<OpRates>& rates);

 private:
  /// Returns the GEMMs of the case's recipes that the device runs natively.
  std::vector<NativeGemm> native_gemms(const Device& device) const;

  const Plan& plan_;
  const NodeShare& share_;
  Record& record_;
  std::mutex mutex_;           // guards everything that ranks write
  std::vector<bool> changed_;  // per parameter: changed on any rank of this process
  std::optional<double> energy_j_per_token_;
  bool continued_ = false;
};

}  // namespace precbench
