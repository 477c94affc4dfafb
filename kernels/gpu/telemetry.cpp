// NVML through dlopen; see telemetry.h. The few declarations needed are written here after NVML's documented
// C ABI (NVML API reference), because its header is not part of every toolkit.
#include "kernels/gpu/telemetry.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <type_traits>

namespace precbench {
namespace {

using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr int kClockSm = 1, kClockMemory = 2;
constexpr int kTemperatureGpu = 0;
constexpr int kUncorrected = 1, kVolatileCounter = 0;
constexpr unsigned kMaxNvlinks = 18;
constexpr int kP2pNvlink = 2, kP2pOk = 0;

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

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// The known values of one field of the readings.
std::vector<double> known(const std::vector<GpuReading>& readings, std::optional<double> GpuReading::*field) {
  std::vector<double> values;
  for (const GpuReading& reading : readings)
    if (reading.*field) values.push_back(*(reading.*field));
  return values;
}

}  // namespace

/// The library and those of its functions we call; a function that an old driver lacks is null.
struct GpuMonitor::Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_pci)(const char*, NvmlDevice*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;
  int (*throttle)(NvmlDevice, unsigned long long*) = nullptr;
  int (*ecc_mode)(NvmlDevice, int*, int*) = nullptr;
  int (*ecc_errors)(NvmlDevice, int, int, unsigned long long*) = nullptr;
  int (*energy)(NvmlDevice, unsigned long long*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
  int (*nvlink)(NvmlDevice, unsigned, int*) = nullptr;
  int (*nvlink_remote)(NvmlDevice, unsigned, NvmlPci*) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*p2p)(NvmlDevice, NvmlDevice, int, int*) = nullptr;

  ~Nvml() {
    if (shutdown) shutdown();
    if (library) dlclose(library);
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
  }

  /// Null where there is no usable NVML.
  static std::shared_ptr<const Nvml> load() {
    auto nvml = std::make_shared<Nvml>();
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library) return nullptr;
    nvml->find(nvml->init, "nvmlInit_v2");
    nvml->find(nvml->by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
    nvml->find(nvml->driver_version, "nvmlSystemGetDriverVersion");
    nvml->find(nvml->power, "nvmlDeviceGetPowerUsage");
    nvml->find(nvml->power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    nvml->find(nvml->clock, "nvmlDeviceGetClockInfo");
    nvml->find(nvml->temperature, "nvmlDeviceGetTemperature");
    nvml->find(nvml->throttle, "nvmlDeviceGetCurrentClocksEventReasons");
    if (!nvml->throttle)
      nvml->find(nvml->throttle, "nvmlDeviceGetCurrentClocksThrottleReasons");  // before 535
    nvml->find(nvml->ecc_mode, "nvmlDeviceGetEccMode");
    nvml->find(nvml->ecc_errors, "nvmlDeviceGetTotalEccErrors");
    nvml->find(nvml->energy, "nvmlDeviceGetTotalEnergyConsumption");
    nvml->find(nvml->memory, "nvmlDeviceGetMemoryInfo");
    nvml->find(nvml->processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    nvml->find(nvml->nvlink, "nvmlDeviceGetNvLinkState");
    nvml->find(nvml->nvlink_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    nvml->find(nvml->pci, "nvmlDeviceGetPciInfo_v3");
    nvml->find(nvml->p2p, "nvmlDeviceGetP2PStatus");
    if (!nvml->init || !nvml->by_pci || nvml->init() != kSuccess) return nullptr;
    nvml->find(nvml->shutdown, "nvmlShutdown");  // only now: what was not started is not ended
    return nvml;
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
  std::map<int, int, std::greater<>> pairs;  // how many have so many links
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
  std::vector<std::unique_ptr<GpuMonitor>> monitors;
  for (const std::string& id : pci_bus_ids) {
    monitors.push_back(GpuMonitor::open(id));
    if (!monitors.back()) return std::nullopt;
  }
  if (monitors.size() == 1) {
    const int links = monitors.front()->active_nvlinks();
    return links ? std::optional(fmt::format("{} links up", links)) : std::nullopt;
  }
  std::vector<int> links;
  for (std::size_t i = 0; i < monitors.size(); ++i)
    for (std::size_t k = i + 1; k < monitors.size(); ++k) {
      const std::optional<int> between = monitors[i]->nvlinks_to(*monitors[k]);
      if (!between) return std::nullopt;
      links.push_back(*between);
    }
  return describe_links(static_cast<int>(monitors.size()), links);
}

std::unique_ptr<GpuMonitor> GpuMonitor::open(const std::string& pci_bus_id) {
  auto nvml = Nvml::load();
  NvmlDevice device = nullptr;
  if (!nvml || nvml->by_pci(pci_bus_id.c_str(), &device) != kSuccess) return nullptr;
  return std::unique_ptr<GpuMonitor>(new GpuMonitor(std::move(nvml), device));
}

GpuMonitor::~GpuMonitor() = default;

std::string GpuMonitor::driver_version() const {
  char text[96] = "";
  return Nvml::ask(nvml_->driver_version, text, sizeof text) ? text : "";
}

int GpuMonitor::ecc_mode() const {
  int current = 0, pending = 0;
  return Nvml::ask(nvml_->ecc_mode, device_, &current, &pending) ? current : -1;
}

double GpuMonitor::power_limit_w() const {
  unsigned milliwatts = 0;
  return Nvml::ask(nvml_->power_limit, device_, &milliwatts) ? milliwatts / 1e3 : 0;
}

bool GpuMonitor::nvlink_up(unsigned link) const {
  int state = 0;
  return Nvml::ask(nvml_->nvlink, device_, link, &state) && state == 1;
}

int GpuMonitor::active_nvlinks() const {
  int active = 0;
  for (unsigned link = 0; link < kMaxNvlinks; ++link) active += nvlink_up(link);
  return active;
}

std::optional<int> GpuMonitor::nvlinks_to(const GpuMonitor& peer) const {
  int status = 0;
  NvmlPci there{}, end{};
  if (!Nvml::ask(nvml_->p2p, device_, peer.device_, kP2pNvlink, &status)) return std::nullopt;
  if (status != kP2pOk) return 0;
  if (!Nvml::ask(nvml_->pci, peer.device_, &there)) return std::nullopt;
  int direct = 0;
  for (unsigned link = 0; link < kMaxNvlinks; ++link)
    if (nvlink_up(link) && Nvml::ask(nvml_->nvlink_remote, device_, link, &end))
      direct += end.domain == there.domain && end.bus == there.bus && end.device == there.device;
  // Where none ends at the other GPU they end at switches, which join any of them.
  return direct ? direct : std::min(active_nvlinks(), peer.active_nvlinks());
}

std::optional<std::int64_t> GpuMonitor::used_bytes() const {
  NvmlMemory memory{};
  if (!Nvml::ask(nvml_->memory, device_, &memory)) return std::nullopt;
  return static_cast<std::int64_t>(memory.used);
}

int GpuMonitor::other_processes() const {
  if (!nvml_->processes) return 0;
  std::vector<NvmlProcess> processes(64);
  unsigned count = static_cast<unsigned>(processes.size());
  const int status = nvml_->processes(device_, &count, processes.data());
  if (status != kSuccess && status != kInsufficientSize) return 0;
  processes.resize(std::min<std::size_t>(count, processes.size()));
  const unsigned self = static_cast<unsigned>(getpid());
  return static_cast<int>(
      std::count_if(processes.begin(), processes.end(), [&](const NvmlProcess& p) { return p.pid != self; }));
}

GpuReading GpuMonitor::read() const {
  GpuReading reading;
  unsigned value = 0;
  unsigned long long bits = 0;
  if (Nvml::ask(nvml_->power, device_, &value)) reading.power_w = value / 1e3;
  if (Nvml::ask(nvml_->clock, device_, kClockSm, &value)) reading.sm_clock_mhz = value;
  if (Nvml::ask(nvml_->clock, device_, kClockMemory, &value)) reading.memory_clock_mhz = value;
  if (Nvml::ask(nvml_->temperature, device_, kTemperatureGpu, &value)) reading.temperature_c = value;
  if (Nvml::ask(nvml_->throttle, device_, &bits)) reading.throttle_bits = bits;
  return reading;
}

std::optional<std::int64_t> GpuMonitor::uncorrected_errors() const {
  unsigned long long errors = 0;
  if (!Nvml::ask(nvml_->ecc_errors, device_, kUncorrected, kVolatileCounter, &errors)) return std::nullopt;
  return static_cast<std::int64_t>(errors);
}

std::optional<double> GpuMonitor::energy_j() const {
  unsigned long long millijoules = 0;
  if (!Nvml::ask(nvml_->energy, device_, &millijoules)) return std::nullopt;
  return static_cast<double>(millijoules) / 1e3;
}

void GpuMonitor::start(std::chrono::milliseconds interval) {
  stop();
  readings_.clear();
  errors_before_ = uncorrected_errors();
  energy_before_ = energy_j();
  thread_ = std::jthread([this, interval](std::stop_token stopping) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    do readings_.push_back(read());
    while (!wake.wait_for(lock, stopping, interval, [&] { return stopping.stop_requested(); }));
  });
}

GpuTelemetry GpuMonitor::stop() {
  GpuTelemetry summary;
  if (!thread_.joinable()) return summary;
  thread_.request_stop();
  thread_.join();
  summary.readings = static_cast<int>(readings_.size());
  if (const auto clocks = known(readings_, &GpuReading::sm_clock_mhz); !clocks.empty()) {
    summary.sm_clock_mhz = median(clocks);
    summary.sm_clock_min_mhz = *std::min_element(clocks.begin(), clocks.end());
    summary.sm_clock_max_mhz = *std::max_element(clocks.begin(), clocks.end());
  }
  if (const auto clocks = known(readings_, &GpuReading::memory_clock_mhz); !clocks.empty())
    summary.memory_clock_mhz = median(clocks);
  if (const auto power = known(readings_, &GpuReading::power_w); !power.empty()) {
    summary.power_w = std::accumulate(power.begin(), power.end(), 0.0) / static_cast<double>(power.size());
    summary.power_max_w = *std::max_element(power.begin(), power.end());
  }
  if (const auto heat = known(readings_, &GpuReading::temperature_c); !heat.empty())
    summary.temperature_c = *std::max_element(heat.begin(), heat.end());
  std::uint64_t bits = 0;
  for (const GpuReading& reading : readings_) bits |= reading.throttle_bits;
  summary.throttle_reasons = throttle_reason_names(bits);
  if (const auto errors = uncorrected_errors(); errors && errors_before_)
    summary.ecc_errors = *errors - *errors_before_;
  if (const auto energy = energy_j(); energy && energy_before_) summary.energy_j = *energy - *energy_before_;
  return summary;
}

}  // namespace precbench
