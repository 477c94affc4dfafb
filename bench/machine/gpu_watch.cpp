// Runs one monitor per GPU and combines their results. See gpu_watch.h.
#include "bench/machine/gpu_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/gpu/device_info.h"
#include "results/record/statistics.h"

namespace precbench {
namespace {

using Number = std::optional<double>;

/// Returns `f` of the known values; null if there are none.
template <class F>
Number of_known(const std::vector<GpuTelemetry>& gpus, Number GpuTelemetry::*field, F&& f) {
  std::vector<double> values;
  for (const GpuTelemetry& gpu : gpus)
    if (gpu.*field) values.push_back(*(gpu.*field));
  return values.empty() ? Number() : Number(f(values));
}

double middle(const std::vector<double>& x) { return sample_statistics(x)->median; }
double lowest(const std::vector<double>& x) { return *std::min_element(x.begin(), x.end()); }
double highest(const std::vector<double>& x) { return *std::max_element(x.begin(), x.end()); }
double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

}  // namespace

Telemetry combine(const std::vector<GpuTelemetry>& gpus) {
  Telemetry all;
  all.sm_clock_mhz = of_known(gpus, &GpuTelemetry::sm_clock_mhz, middle);
  all.sm_clock_min_mhz = of_known(gpus, &GpuTelemetry::sm_clock_min_mhz, lowest);
  all.sm_clock_max_mhz = of_known(gpus, &GpuTelemetry::sm_clock_max_mhz, highest);
  all.memory_clock_mhz = of_known(gpus, &GpuTelemetry::memory_clock_mhz, middle);
  all.power_w = of_known(gpus, &GpuTelemetry::power_w, mean);
  all.power_max_w = of_known(gpus, &GpuTelemetry::power_max_w, highest);
  all.temperature_c = of_known(gpus, &GpuTelemetry::temperature_c, highest);
  all.ecc_errors = 0;
  for (const GpuTelemetry& gpu : gpus) {
    for (const std::string& reason : gpu.throttle_reasons)
      if (!std::count(all.throttle_reasons.begin(), all.throttle_reasons.end(), reason))
        all.throttle_reasons.push_back(reason);
    if (all.ecc_errors && gpu.ecc_errors)
      *all.ecc_errors += *gpu.ecc_errors;
    else
      all.ecc_errors.reset();
  }
  return all;
}

GpuWatch::GpuWatch(int first, int count) : count_(count) {
  for (int gpu = first; gpu < first + count; ++gpu) {
    std::unique_ptr<GpuMonitor> monitor = GpuMonitor::open(gpu_properties(gpu).pci_bus_id);
    if (!monitor) continue;
    if (const int others = monitor->gpu().other_processes())
      warnings_.push_back(
          others == 1 ? fmt::format("another process uses GPU {}: its speed is shared", gpu)
                      : fmt::format("{} other processes use GPU {}: its speed is shared", others, gpu));
    monitors_.push_back(std::move(monitor));
  }
}

std::optional<std::int64_t> GpuWatch::used_bytes() const {
  std::optional<std::int64_t> most;
  for (const auto& monitor : monitors_)
    if (const auto used = monitor->gpu().used_bytes(); used && *used > most.value_or(-1)) most = used;
  return most;
}

void GpuWatch::start() {
  for (const auto& monitor : monitors_) monitor->start();
}

GpuWatch::Result GpuWatch::stop() {
  if (monitors_.empty()) return {};
  std::vector<GpuTelemetry> gpus;
  for (const auto& monitor : monitors_) gpus.push_back(monitor->stop());
  Result result{combine(gpus), std::nullopt};
  double energy = 0;
  const bool told = std::all_of(gpus.begin(), gpus.end(), [&](const GpuTelemetry& gpu) {
    energy += gpu.energy_j.value_or(0);
    return gpu.energy_j.has_value();
  });
  if (told && static_cast<int>(gpus.size()) == count_) result.energy_j = energy;
  return result;
}

}  // namespace precbench
