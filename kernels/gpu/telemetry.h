// GPU state during a run: NVML readings (nvml.h) taken by a thread, and their statistics.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/gpu/nvml.h"

namespace precbench {

/// Statistics of a period. Clocks: median, lowest, highest. Power: mean and highest. Temperature: highest.
struct GpuTelemetry {
  int readings = 0;
  std::optional<double> sm_clock_mhz, sm_clock_min_mhz, sm_clock_max_mhz, memory_clock_mhz;
  std::optional<double> power_w, power_max_w, temperature_c;
  std::vector<std::string> throttle_reasons;  ///< seen at least once, in NVML's bit order, without idle
  std::optional<std::int64_t> ecc_errors;     ///< uncorrected, new since start()
  std::optional<double> energy_j;             ///< between start() and stop()
};

/// Returns the increase of a counter between two readings. Null if either is unknown, or if the counter was
/// reset between them and is lower now.
template <class T>
std::optional<T> gain_between(const std::optional<T>& before, const std::optional<T>& after) {
  return before && after && *after >= *before ? std::optional<T>(*after - *before) : std::nullopt;
}

class GpuMonitor {
 public:
  explicit GpuMonitor(std::unique_ptr<const NvmlGpu> gpu);
  /// Like NvmlGpu::open.
  static std::unique_ptr<GpuMonitor> open(const std::string& pci_bus_id);

  const NvmlGpu& gpu() const { return *gpu_; }

  /// Starts a thread that reads every `interval` until stop(). NVML refreshes power about every 100 ms.
  void start(std::chrono::milliseconds interval = std::chrono::milliseconds(50));
  GpuTelemetry stop();

 private:
  std::unique_ptr<const NvmlGpu> gpu_;
  std::vector<GpuReading> readings_;  // owned by the thread until it is joined
  std::optional<std::int64_t> errors_before_;
  std::optional<double> energy_before_;
  std::jthread thread_;  // last member, so that it ends before what it uses is destroyed
};

}  // namespace precbench
