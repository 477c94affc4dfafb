// One GPU as reported by NVML: driver, limits, links, memory in use, other processes, and readings of power,
// clocks, temperature, throttling, errors and energy. NVML comes with the driver and is opened at run time
// (dlopen), so this builds everywhere and reports nothing without a driver. It only reads: no clock, limit or
// mode is ever set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// One reading; values that the driver does not report are empty.
struct GpuReading {
  std::optional<double> power_w, sm_clock_mhz, memory_clock_mhz, temperature_c;
  std::uint64_t throttle_bits = 0;
};

/// Returns the names of the set bits of NVML's "clocks event reasons" except idle: "sw_power_cap",
/// "hw_thermal_slowdown", ...
std::vector<std::string> throttle_reason_names(std::uint64_t bits);

/// Describes the links between several GPUs: "4 GPUs, all pairs NV18". `links`: of the pairs 0-1, 0-2, ...,
/// 1-2, ...
std::string describe_links(int gpus, const std::vector<int>& links);

/// Returns the links of one GPU, "18 links up", or between several as in describe_links; GPUs are given by
/// PCI bus id. Empty if unknown, or if a single GPU has none.
std::optional<std::string> link_topology(const std::vector<std::string>& pci_bus_ids);

/// The NVML queries that the program needs.
class NvmlGpu {
 public:
  /// Opens the GPU with this PCI bus id ("00000000:18:00.0"); null without NVML or if it does not know the
  /// GPU.
  static std::unique_ptr<NvmlGpu> open(const std::string& pci_bus_id);

  std::string driver_version() const;  ///< "580.159.04"; empty if unknown
  int ecc_mode() const;                ///< 1 on, 0 off, -1 unknown
  double power_limit_w() const;        ///< 0 if unknown
  std::optional<double> default_power_limit_w() const;
  std::optional<double> max_sm_clock_mhz() const;
  std::optional<bool> mig_mode() const;  ///< true: the GPU may be divided into instances
  struct PcieLink {
    int width = 0, max_width = 0;  ///< lanes now, and at most of the board and its slot
    int max_generation = 0;        ///< the present one falls when the GPU is idle
  };
  std::optional<PcieLink> pcie_link() const;
  /// Returns true if the GPUs can read each other's memory; empty if unknown.
  std::optional<bool> peer_access_to(const NvmlGpu& peer) const;
  int active_nvlinks() const;  ///< active links; 18 on an H200 in an HGX board
  /// Returns the NVLinks to another GPU, direct or through switches; 0: none; empty if unknown.
  std::optional<int> nvlinks_to(const NvmlGpu& peer) const;
  /// Returns the bytes in use on the GPU by all processes; empty if unknown.
  std::optional<std::int64_t> used_bytes() const;
  /// Returns the number of other compute processes on the GPU. Call it before opening the device: inside a
  /// container NVML may number this process differently and would count it too.
  int other_processes() const;

  GpuReading read() const;
  std::optional<std::int64_t> uncorrected_errors() const;  ///< memory errors since the driver was loaded
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
