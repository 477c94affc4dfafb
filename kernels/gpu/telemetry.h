// What the GPU says about itself while it works: power, clocks, temperature, throttling, memory errors,
// energy, and who else uses it. Through NVML, which comes with the driver and is opened when the program runs
// (dlopen), so this builds everywhere and answers "nothing known" where there is no driver. It only reads: no
// clock, limit or mode is ever set.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace precbench {

/// One reading; what the driver does not tell is empty.
struct GpuReading {
  std::optional<double> power_w, sm_clock_mhz, memory_clock_mhz, temperature_c;
  std::uint64_t throttle_bits = 0;
};

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

/// Names of the bits of NVML's "clocks event reasons" but idle: "sw_power_cap", "hw_thermal_slowdown", ...
std::vector<std::string> throttle_reason_names(std::uint64_t bits);

/// Links between each two of several GPUs in words: "4 GPUs, all pairs NV18". `links`: of the pairs 0-1, 0-2,
/// ..., 1-2, ...
std::string describe_links(int gpus, const std::vector<int>& links);

/// The links of one GPU, "18 links up", or between all of several, as describe_links has them; by PCI bus ids. Empty if
/// unknown, or where there are none of one.
std::optional<std::string> link_topology(const std::vector<std::string>& pci_bus_ids);

class GpuMonitor {
 public:
  /// The GPU with this PCI bus id ("00000000:18:00.0"); null without NVML or where it does not know the GPU.
  static std::unique_ptr<GpuMonitor> open(const std::string& pci_bus_id);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  std::string driver_version() const;  ///< "580.159.04"; empty if unknown
  int ecc_mode() const;                ///< 1 on, 0 off, -1 unknown
  double power_limit_w() const;        ///< 0 if unknown
  int active_nvlinks() const;          ///< links that are up; 18 on an H200 in an HGX board
  /// NVLinks by which this GPU reaches another one, directly or through switches; 0: by none; empty if unknown.
  std::optional<int> nvlinks_to(const GpuMonitor& peer) const;
  /// Bytes in use on the GPU by everybody; empty if unknown.
  std::optional<std::int64_t> used_bytes() const;
  /// Compute processes on the GPU other than this one. Ask before opening the device: inside a container NVML
  /// may number this very process differently, and it would then count as another.
  int other_processes() const;

  GpuReading read() const;

  /// Reads in a thread of its own, every `interval`, until stop(). NVML refreshes power about every 100 ms.
  void start(std::chrono::milliseconds interval = std::chrono::milliseconds(50));
  GpuTelemetry stop();

 private:
  struct Nvml;
  GpuMonitor(std::shared_ptr<const Nvml> nvml, void* device) : nvml_(std::move(nvml)), device_(device) {}
  bool nvlink_up(unsigned link) const;
  std::optional<std::int64_t> uncorrected_errors() const;
  std::optional<double> energy_j() const;

  std::shared_ptr<const Nvml> nvml_;
  void* device_;
  std::vector<GpuReading> readings_;  // the thread's until it has been joined
  std::optional<std::int64_t> errors_before_;
  std::optional<double> energy_before_;
  std::jthread thread_;  // last, so that it has ended when what it uses goes
};

}  // namespace precbench
