// The GPUs of a case while it runs: what each says of itself (kernels/gpu/telemetry.h), put together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gpu/telemetry.h"
#include "results/record.h"

namespace precbench {

/// Several GPUs' telemetry as one. Clocks: the median GPU's, and the extremes of all; power: the mean GPU's,
/// and the highest of any; temperature: the hottest; throttle reasons of any; errors of all, null where one
/// does not count them.
Telemetry combine(const std::vector<GpuTelemetry>& gpus);

class GpuWatch {
 public:
  /// Of the GPUs [first, first + count). To be made before their devices are opened: afterwards this process
  /// may count as another (NvmlGpu::other_processes).
  GpuWatch(int first, int count);

  /// One line for each GPU that other processes use.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Bytes in use on the GPU that has most; null where the driver does not tell.
  std::optional<std::int64_t> used_bytes() const;

  struct Result {
    std::optional<Telemetry> telemetry;  ///< null where no GPU says anything
    std::optional<double> energy_j;      ///< of all GPUs together; null where one does not tell
  };
  void start();
  /// Of the time since start().
  Result stop();

 private:
  int count_;
  std::vector<std::unique_ptr<GpuMonitor>> monitors_;  // of the GPUs that tell of themselves
  std::vector<std::string> warnings_;
};

}  // namespace precbench
