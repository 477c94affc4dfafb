// NVML through dlopen; see nvml.h. The few declarations needed are written here after NVML's documented C ABI
// (NVML API reference), because its header is not part of every toolkit.
#include "kernels/gpu/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>

namespace precbench {
namespace {

using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr int kClockSm = 1, kClockMemory = 2;
constexpr int kTemperatureGpu = 0;
constexpr int kUncorrected = 1, kVolatileCounter = 0;
constexpr unsigned kMaxNvlinks = 18;
constexpr int kP2pRead = 0, kP2pNvlink = 2, kP2pOk = 0;

struct NvmlMemory {
  unsigned long long total, free, used;
};

struct NvmlPci {  // nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3 and nvmlDeviceGetNvLinkRemotePciInfo_v2
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct NvmlProcess {  // nvmlProcessInfo_t of the _v3 calls
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

struct ThrottleReason {
  std::uint64_t bit;
  const char* name;
};
constexpr ThrottleReason kThrottleReasons[] = {{0x002, "applications_clocks_setting"},
                                               {0x004, "sw_power_cap"},
                                               {0x008, "hw_slowdown"},
                                               {0x010, "sync_boost"},
                                               {0x020, "sw_thermal_slowdown"},
                                               {0x040, "hw_thermal_slowdown"},
                                               {0x080, "hw_power_brake_slowdown"},
                                               {0x100, "display_clock_setting"}};

}  // namespace

/// The library and the functions used; functions that an old driver lacks are null.
struct NvmlGpu::Library {
  /// A function's address, convertible to any pointer type.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol find(const char* name, const char* older_name = nullptr) const {
    void* address = handle ? dlsym(handle, name) : nullptr;
    return {handle && !address && older_name ? dlsym(handle, older_name) : address};
  }

  void* handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  int (*init)() = find("nvmlInit_v2");
  int (*shutdown)() = nullptr;  // set once shutdown is needed
  int (*by_pci)(const char*, NvmlDevice*) = find("nvmlDeviceGetHandleByPciBusId_v2");
  int (*driver_version)(char*, unsigned) = find("nvmlSystemGetDriverVersion");
  int (*power)(NvmlDevice, unsigned*) = find("nvmlDeviceGetPowerUsage");
  int (*power_limit)(NvmlDevice, unsigned*) = find("nvmlDeviceGetEnforcedPowerLimit");
  int (*default_power_limit)(NvmlDevice, unsigned*) = find("nvmlDeviceGetPowerManagementDefaultLimit");
  int (*clock)(NvmlDevice, int, unsigned*) = find("nvmlDeviceGetClockInfo");
  int (*max_clock)(NvmlDevice, int, unsigned*) = find("nvmlDeviceGetMaxClockInfo");
  int (*mig_mode)(NvmlDevice, unsigned*, unsigned*) = find("nvmlDeviceGetMigMode");
  int (*pcie_width)(NvmlDevice, unsigned*) = find("nvmlDeviceGetCurrPcieLinkWidth");
  int (*max_pcie_width)(NvmlDevice, unsigned*) = find("nvmlDeviceGetMaxPcieLinkWidth");
  int (*max_pcie_generation)(NvmlDevice, unsigned*) = find("nvmlDeviceGetMaxPcieLinkGeneration");
  int (*temperature)(NvmlDevice, int, unsigned*) = find("nvmlDeviceGetTemperature");
  int (*throttle)(NvmlDevice,
                  unsigned long long*) = find("nvmlDeviceGetCurrentClocksEventReasons",
                                              "nvmlDeviceGetCurrentClocksThrottleReasons");  // before 535
  int (*ecc_mode)(NvmlDevice, int*, int*) = find("nvmlDeviceGetEccMode");
  int (*ecc_errors)(NvmlDevice, int, int, unsigned long long*) = find("nvmlDeviceGetTotalEccErrors");
  int (*energy)(NvmlDevice, unsigned long long*) = find("nvmlDeviceGetTotalEnergyConsumption");
  int (*memory)(NvmlDevice, NvmlMemory*) = find("nvmlDeviceGetMemoryInfo");
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = find("nvmlDeviceGetComputeRunningProcesses_v3");
  int (*nvlink)(NvmlDevice, unsigned, int*) = find("nvmlDeviceGetNvLinkState");
  int (*nvlink_remote)(NvmlDevice, unsigned, NvmlPci*) = find("nvmlDeviceGetNvLinkRemotePciInfo_v2");
  int (*pci)(NvmlDevice, NvmlPci*) = find("nvmlDeviceGetPciInfo_v3");
  int (*p2p)(NvmlDevice, NvmlDevice, int, int*) = find("nvmlDeviceGetP2PStatus");

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (shutdown) shutdown();
    if (handle) dlclose(handle);
  }

  /// Returns null if there is no usable NVML.
  static std::shared_ptr<const Library> load() {
    auto found = std::make_shared<Library>();
    if (!found->init || !found->by_pci || found->init() != kSuccess) return nullptr;
    found->shutdown = found->find("nvmlShutdown");
    return found;
  }

  template <class... Arguments>
  static bool ask(int (*function)(Arguments...), std::type_identity_t<Arguments>... arguments) {
    return function && function(arguments...) == kSuccess;
  }
};

std::vector<std::string> throttle_reason_names(std::uint64_t bits) {
  std::vector<std::string> names;
  for (const ThrottleReason& reason : kThrottleReasons)
    if (bits & reason.bit) names.emplace_back(reason.name);
  return names;
}

std::string describe_links(int gpus, const std::vector<int>& links) {
  std::map<int, int, std::greater<>> pairs;  // number of pairs by number of links
  for (const int n : links) ++pairs[n];
  if (pairs.size() == 1 && links.front() > 0)
    return fmt::format("{} GPUs, all pairs NV{}", gpus, links.front());
  if (pairs.size() == 1) return fmt::format("{} GPUs, no pair with NVLink", gpus);
  std::string text;
  for (const auto& [n, count] : pairs)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count,
                        n ? fmt::format("NV{}", n) : std::string("without NVLink"));
  return fmt::format("{} GPUs, pairs: {}", gpus, text);
}

std::optional<std::string> link_topology(const std::vector<std::string>& pci_bus_ids) {
  std::vector<std::unique_ptr<NvmlGpu>> gpus;
  for (const std::string& id : pci_bus_ids) {
    gpus.push_back(NvmlGpu::open(id));
    if (!gpus.back()) return std::nullopt;
  }
  if (gpus.size() == 1) {
    const int links = gpus.front()->active_nvlinks();
    return links ? std::optional(fmt::format("{} links up", links)) : std::nullopt;
  }
  std::vector<int> links;
  for (std::size_t i = 0; i < gpus.size(); ++i)
    for (std::size_t k = i + 1; k < gpus.size(); ++k) {
      const std::optional<int> between = gpus[i]->nvlinks_to(*gpus[k]);
      if (!between) return std::nullopt;
      links.push_back(*between);
    }
  return describe_links(static_cast<int>(gpus.size()), links);
}

std::unique_ptr<NvmlGpu> NvmlGpu::open(const std::string& pci_bus_id) {
  auto library = Library::load();
  NvmlDevice device = nullptr;
  if (!library || library->by_pci(pci_bus_id.c_str(), &device) != kSuccess) return nullptr;
  return std::unique_ptr<NvmlGpu>(new NvmlGpu(std::move(library), device));
}

std::string NvmlGpu::driver_version() const {
  char text[96] = "";
  return Library::ask(library_->driver_version, text, sizeof text) ? text : "";
}

int NvmlGpu::ecc_mode() const {
  int current = 0, pending = 0;
  return Library::ask(library_->ecc_mode, device_, &current, &pending) ? current : -1;
}

double NvmlGpu::power_limit_w() const {
  unsigned milliwatts = 0;
  return Library::ask(library_->power_limit, device_, &milliwatts) ? milliwatts / 1e3 : 0;
}

std::optional<double> NvmlGpu::default_power_limit_w() const {
  unsigned milliwatts = 0;
  if (!Library::ask(library_->default_power_limit, device_, &milliwatts)) return std::nullopt;
  return milliwatts / 1e3;
}

std::optional<double> NvmlGpu::max_sm_clock_mhz() const {
  unsigned clock = 0;
  if (!Library::ask(library_->max_clock, device_, kClockSm, &clock)) return std::nullopt;
  return clock;
}

std::optional<bool> NvmlGpu::mig_mode() const {
  unsigned current = 0, pending = 0;
  if (!Library::ask(library_->mig_mode, device_, &current, &pending)) return std::nullopt;
  return current != 0;
}

std::optional<NvmlGpu::PcieLink> NvmlGpu::pcie_link() const {
  unsigned width = 0, max_width = 0, max_generation = 0;
  if (!Library::ask(library_->pcie_width, device_, &width) ||
      !Library::ask(library_->max_pcie_width, device_, &max_width))
    return std::nullopt;
  Library::ask(library_->max_pcie_generation, device_, &max_generation);
  return PcieLink{static_cast<int>(width), static_cast<int>(max_width), static_cast<int>(max_generation)};
}

std::optional<bool> NvmlGpu::peer_access_to(const NvmlGpu& peer) const {
  int status = 0;
  if (!Library::ask(library_->p2p, device_, peer.device_, kP2pRead, &status)) return std::nullopt;
  return status == kP2pOk;
}

bool NvmlGpu::nvlink_up(unsigned link) const {
  int state = 0;
  return Library::ask(library_->nvlink, device_, link, &state) && state == 1;
}

int NvmlGpu::active_nvlinks() const {
  int active = 0;
  for (unsigned link = 0; link < kMaxNvlinks; ++link) active += nvlink_up(link);
  return active;
}

std::optional<int> NvmlGpu::nvlinks_to(const NvmlGpu& peer) const {
  int status = 0;
  NvmlPci there{}, end{};
  if (!Library::ask(library_->p2p, device_, peer.device_, kP2pNvlink, &status)) return std::nullopt;
  if (status != kP2pOk) return 0;
  if (!Library::ask(library_->pci, peer.device_, &there)) return std::nullopt;
  int direct = 0;
  for (unsigned link = 0; link < kMaxNvlinks; ++link)
    if (nvlink_up(link) && Library::ask(library_->nvlink_remote, device_, link, &end))
      direct += end.domain == there.domain && end.bus == there.bus && end.device == there.device;
  // Without direct links, all links go to switches, which connect every GPU.
  return direct ? direct : std::min(active_nvlinks(), peer.active_nvlinks());
}

std::optional<std::int64_t> NvmlGpu::used_bytes() const {
  NvmlMemory memory{};
  if (!Library::ask(library_->memory, device_, &memory)) return std::nullopt;
  return static_cast<std::int64_t>(memory.used);
}

int NvmlGpu::other_processes() const {
  if (!library_->processes) return 0;
  std::vector<NvmlProcess> processes(64);
  unsigned count = static_cast<unsigned>(processes.size());
  const int status = library_->processes(device_, &count, processes.data());
  if (status != kSuccess && status != kInsufficientSize) return 0;
  processes.resize(std::min<std::size_t>(count, processes.size()));
  const unsigned self = static_cast<unsigned>(getpid());
  return static_cast<int>(
      std::count_if(processes.begin(), processes.end(), [&](const NvmlProcess& p) { return p.pid != self; }));
}

GpuReading NvmlGpu::read() const {
  GpuReading reading;
  unsigned value = 0;
  unsigned long long bits = 0;
  if (Library::ask(library_->power, device_, &value)) reading.power_w = value / 1e3;
  if (Library::ask(library_->clock, device_, kClockSm, &value)) reading.sm_clock_mhz = value;
  if (Library::ask(library_->clock, device_, kClockMemory, &value)) reading.memory_clock_mhz = value;
  if (Library::ask(library_->temperature, device_, kTemperatureGpu, &value)) reading.temperature_c = value;
  if (Library::ask(library_->throttle, device_, &bits)) reading.throttle_bits = bits;
  return reading;
}

std::optional<std::int64_t> NvmlGpu::uncorrected_errors() const {
  unsigned long long errors = 0;
  if (!Library::ask(library_->ecc_errors, device_, kUncorrected, kVolatileCounter, &errors))
    return std::nullopt;
  return static_cast<std::int64_t>(errors);
}

std::optional<double> NvmlGpu::energy_j() const {
  unsigned long long millijoules = 0;
  if (!Library::ask(library_->energy, device_, &millijoules)) return std::nullopt;
  return static_cast<double>(millijoules) / 1e3;
}

}  // namespace precbench
