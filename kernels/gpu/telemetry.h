// What a GPU did while it worked: readings of NVML (nvml.h), taken by a thread and put together.
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

/// A stretch of readings. Clocks: median, lowest, highest. Power: mean and highest. Temperature: highest.
struct GpuTelemetry {
  int readings = 0;
  std::optional<double> sm_clock_mhz, sm_clock_min_mhz, sm_clock_max_mhz, memory_clock_mhz;
  std::optional<double> power_w, power_max_w, temperature_c;
  std::vector<std::string>
      throttle_reasons;                    ///< seen at least once, in NVML's order of bits; idle is not one
  std::optional<std::int64_t> ecc_errors;  ///< uncorrected, new since start()
  std::optional<double> energy_j;          ///< between start() and stop()
};

/// Returns what a counter has gained between two readings. Null where either is not known, or the counter was reset between
/// them and is lower now.
template <class T>
std::optional<T> gain_between(const std::optional<T>& before, const std::optional<T>& after) {
  return before && after && *after >= *before ? std::optional<T>(*after - *before) : std::nullopt;
}

class GpuMonitor {
 public:
  explicit GpuMonitor(std::unique_ptr<const NvmlGpu> gpu);
  /// As of NvmlGpu::open.
  static std::unique_ptr<GpuMonitor> open(const std::string& pci_bus_id);

  const NvmlGpu& gpu() const { return *gpu_; }

  /// Reads in a thread of its own, every `interval`, until stop(). NVML refreshes power about every 100 ms.
  void start(std::chrono::milliseconds interval = std::chrono::milliseconds(50));
  GpuTelemetry stop();

 private:
  std::unique_ptr<const NvmlGpu> gpu_;
  std::vector<GpuReading> readings_;  // the thread's until it has been joined
  std::optional<std::int64_t> errors_before_;
  std::optional<double> energy_before_;
  std::jthread thread_;  // last, so that it has ended when what it uses goes
};

}  // namespace precbench
