// The reading thread, and statistics of its readings. See telemetry.h.
#include "kernels/gpu/telemetry.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

namespace precbench {
namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Returns the known values of one field of the readings.
std::vector<double> known(const std::vector<GpuReading>& readings, std::optional<double> GpuReading::*field) {
  std::vector<double> values;
  for (const GpuReading& reading : readings)
    if (reading.*field) values.push_back(*(reading.*field));
  return values;
}

}  // namespace

GpuMonitor::GpuMonitor(std::unique_ptr<const NvmlGpu> gpu) : gpu_(std::move(gpu)) {}

std::unique_ptr<GpuMonitor> GpuMonitor::open(const std::string& pci_bus_id) {
  std::unique_ptr<NvmlGpu> gpu = NvmlGpu::open(pci_bus_id);
  return gpu ? std::make_unique<GpuMonitor>(std::move(gpu)) : nullptr;
}

void GpuMonitor::start(std::chrono::milliseconds interval) {
  stop();
  readings_.clear();
  errors_before_ = gpu_->uncorrected_errors();
  energy_before_ = gpu_->energy_j();
  thread_ = std::jthread([this, interval](std::stop_token stopping) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    do readings_.push_back(gpu_->read());
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
  summary.ecc_errors = gain_between(errors_before_, gpu_->uncorrected_errors());
  summary.energy_j = gain_between(energy_before_, gpu_->energy_j());
  return summary;
}

}  // namespace precbench
