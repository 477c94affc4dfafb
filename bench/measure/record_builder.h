// The record of a case while it runs: measurements come in from the ranks, and the record is made of them.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/measure/predict.h"
#include "bench/process/rendezvous.h"
#include "bench/step/checkpoint.h"
#include "kernels/comm/comm.h"
#include "kernels/gpu/profiler.h"
#include "models/data/data.h"
#include "results/record.h"

namespace precbench {

/// What was seen while the samples were taken.
struct SamplingMeasurement {
  std::optional<double> wall_ms;  ///< per step, by the host's clock
  std::optional<Telemetry> telemetry;
  std::optional<double> energy_j_per_token;
};

class RecordBuilder {
 public:
  /// `share`: of this process, whose part of the ranks these are. Both must outlive the builder, the plan too.
  RecordBuilder(const Plan& plan, const NodeShare& share, Record& record)
      : plan_(plan), share_(share), record_(record) {}

  /// What is known before anything runs. Throws Unsupported where the device cannot run the recipe.
  void describe(const Device& device, const DataSource& data, const DryRun& accounts);

  // From here on ranks may call at the same time. Steps, timing, memory and what comes after them are rank 0's.

  void warn(const std::vector<std::string>& lines);
  void add_step(double loss, double grad_norm, double learning_rate);
  /// What an earlier start of the case had done when it wrote the checkpoint at `path`.
  void continue_curve(const TrainingCurve& curve, const std::string& path);
  void add_evaluation(const Evaluation& evaluation);
  void add_fidelity(std::vector<Fidelity> fidelity);
  void add_sensitivity(SensitivityRecord sensitivity);
  /// After the first step, in which every collective has run once, whether later steps are replayed or not.
  void add_communication(const Comm& comm, const DryRun& accounts);
  /// Fingerprints of this rank's part of every parameter, before and after the first step.
  void add_parameters(const std::vector<std::uint64_t>& before, const std::vector<std::uint64_t>& after);
  void add_timing(Timing timing, const SamplingMeasurement& sampling);
  /// `driver`: as Memory::driver. The device's workspace is outside the arena.
  void add_memory(const MemorySegments& arena, std::int64_t workspace, std::optional<std::int64_t> driver);
  /// Whose kernels ran attention and the linear layers' GEMMs.
  void add_kernels(const Device& device);
  /// What the routers of rank 0 did in its last step, and what they were predicted to send.
  void add_routing(const Routers& routers, const Device& device, const ExpertTraffic& predicted);
  void add_breakdown(const StepProfiler::Result& profile);
  /// Bytes/s of each kind of collective; null where its buffers did not fit.
  void add_bus_rates(const std::vector<std::optional<double>>& rates);
  void add_quantization(std::vector<QuantizationStats> statistics);
  /// The profiled step's casts, and what transposed codes lose, of a recipe that has or could have them.
  void add_flow(const StepProfiler::Result& profile, std::vector<Conversion> conversion);

  /// After the ranks: what follows from all of it. `rates`: the GPU's own.
  void finish(const DryRun& accounts, const std::optional<OpRates>& rates);

 private:
  const Plan& plan_;
  const NodeShare& share_;
  Record& record_;
  std::mutex mutex_;           // of what ranks write
  std::vector<bool> changed_;  // per parameter: on any rank of this process
  std::optional<double> energy_j_per_token_;
  bool continued_ = false;
};

}  // namespace precbench
