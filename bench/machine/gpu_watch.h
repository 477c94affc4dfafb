// Watches the GPUs of a case while it runs and combines their telemetry (kernels/gpu/telemetry.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gpu/telemetry.h"
#include "results/record/record.h"

namespace precbench {

/// Combines several GPUs' telemetry. Clocks: the median GPU's, and the extremes of all; power: the mean
/// GPU's, and the highest of any; temperature: the hottest; throttle reasons of any; ECC errors of all, null
/// if one does not count them.
Telemetry combine(const std::vector<GpuTelemetry>& gpus);

class GpuWatch {
 public:
  /// Watches the GPUs [first, first + count). Create it before their devices are opened: afterwards this
  /// process may count as another (NvmlGpu::other_processes).
  GpuWatch(int first, int count);

  /// Returns one line for each GPU that other processes use.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Returns the bytes in use on the GPU that uses most; null if the driver does not tell.
  std::optional<std::int64_t> used_bytes() const;

  struct Result {
    std::optional<Telemetry> telemetry;  ///< null if no GPU reports any
    std::optional<double> energy_j;      ///< of all GPUs together; null if one does not report it
  };
  void start();
  /// Returns the telemetry since start().
  Result stop();

 private:
  int count_;
  std::vector<std::unique_ptr<GpuMonitor>> monitors_;  // of the GPUs with telemetry
  std::vector<std::string> warnings_;
};

}  // namespace precbench
