// Host time, CPU time and GPU telemetry over the steps that are samples.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/cpu_time.h"
#include "bench/machine/gpu_watch.h"
#include "bench/measure/record_builder.h"
#include "bench/process/rendezvous.h"

namespace precbench {

class SamplingWatch {
 public:
  /// Create it before any device is opened. Both arguments must outlive the watch.
  SamplingWatch(const Plan& plan, const NodeShare& share);

  /// Returns warnings about the GPUs for the record.
  std::vector<std::string> warnings() const;
  /// Returns the bytes in use as reported by the driver; on the CPU the process's peak resident set.
  std::optional<std::int64_t> used_bytes() const;

  struct StepState {
    std::size_t steps = 0;        ///< number of steps done
    bool next_is_sample = false;  ///< true if the next step is a sample
    bool last = false;            ///< true if this was the last step
  };
  /// Call after every step.
  void after_step(const StepState& state);
  /// Runs work between two steps. Its time is excluded; its energy cannot be, so the record will have no
  /// energy.
  void leave_out(const std::function<void()>& work);
  const SamplingMeasurement& result() const { return result_; }

 private:
  using Clock = std::chrono::steady_clock;

  const Plan& plan_;
  const NodeShare& share_;
  std::optional<GpuWatch> gpus_;  // this process's; null on the CPU
  bool watching_ = false;
  std::size_t from_ = 0;
  bool left_out_ = false;
  Clock::time_point since_;
  CpuTime cpu_since_;
  CpuTimeSpent cpu_left_out_;  ///< by leave_out() since then
  SamplingMeasurement result_;
};

}  // namespace precbench
