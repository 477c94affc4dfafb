// What the host's clock and the GPUs say of the steps that are samples.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/gpu_watch.h"
#include "bench/measure/record_builder.h"
#include "bench/process/rendezvous.h"

namespace precbench {

class SamplingWatch {
 public:
  /// Before any device is opened. Both must outlive the watch.
  SamplingWatch(const Plan& plan, const NodeShare& share);

  /// About the GPUs, for the record.
  std::vector<std::string> warnings() const;
  /// Bytes in use, as the driver says; on the CPU the process's peak resident set.
  std::optional<std::int64_t> used_bytes() const;

  /// After every step: how many were done, whether the next one is a sample, and whether this was the last.
  void after_step(std::size_t steps, bool sampling, bool last);
  /// What runs between two steps is no part of the host's clock, and GPUs do not tell its energy from the steps'.
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
  SamplingMeasurement result_;
};

}  // namespace precbench
