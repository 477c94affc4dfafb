// One GPU as NVML knows it: driver, limits, links, memory in use, who else uses it, and readings of power, clocks,
// temperature, throttling, errors and energy. NVML comes with the driver and is opened when the program runs (dlopen), so
// this builds everywhere and knows nothing where there is no driver. It only reads: no clock, limit or mode is ever set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// One reading; what the driver does not tell is empty.
struct GpuReading {
  std::optional<double> power_w, sm_clock_mhz, memory_clock_mhz, temperature_c;
  std::uint64_t throttle_bits = 0;
};

/// Names of the bits of NVML's "clocks event reasons" but idle: "sw_power_cap", "hw_thermal_slowdown", ...
std::vector<std::string> throttle_reason_names(std::uint64_t bits);

/// Links between each two of several GPUs in words: "4 GPUs, all pairs NV18". `links`: of the pairs 0-1, 0-2,
/// ..., 1-2, ...
std::string describe_links(int gpus, const std::vector<int>& links);

/// The links of one GPU, "18 links up", or between all of several, as describe_links has them; by PCI bus ids. Empty if
/// unknown, or where there are none of one.
std::optional<std::string> link_topology(const std::vector<std::string>& pci_bus_ids);

/// All that the program asks of NVML.
class NvmlGpu {
 public:
  /// The GPU with this PCI bus id ("00000000:18:00.0"); null without NVML or where it does not know the GPU.
  static std::unique_ptr<NvmlGpu> open(const std::string& pci_bus_id);

  std::string driver_version() const;  ///< "580.159.04"; empty if unknown
  int ecc_mode() const;                ///< 1 on, 0 off, -1 unknown
  double power_limit_w() const;        ///< 0 if unknown
  int active_nvlinks() const;          ///< links that are up; 18 on an H200 in an HGX board
  /// NVLinks by which this GPU reaches another one, directly or through switches; 0: by none; empty if unknown.
  std::optional<int> nvlinks_to(const NvmlGpu& peer) const;
  /// Bytes in use on the GPU by everybody; empty if unknown.
  std::optional<std::int64_t> used_bytes() const;
  /// Compute processes on the GPU other than this one. Ask before opening the device: inside a container NVML
  /// may number this very process differently, and it would then count as another.
  int other_processes() const;

  GpuReading read() const;
  std::optional<std::int64_t> uncorrected_errors() const;  ///< of memory, since the driver was loaded
  std::optional<double> energy_j() const;                  ///< since the driver was loaded

 private:
  struct Library;
  NvmlGpu(std::shared_ptr<const Library> library, void* device)
      : library_(std::move(library)), device_(device) {}
  bool nvlink_up(unsigned link) const;

  std::shared_ptr<const Library> library_;
  void* device_;
};

}  // namespace precbench
