// Collectives alone, on the device's clock. See bus_bandwidth.h.
#include "bench/bus_bandwidth.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/graph.h"

namespace precbench {
namespace {

constexpr int kWarmUp = 3, kSamples = 11;

void run(Comm& comm, const std::string& name, const Tensor& full, const Tensor& shard) {
  if (name == "all_gather")
    comm.all_gather(full, shard);
  else if (name == "reduce_scatter")
    comm.reduce_scatter(shard, full);
  else if (name == "all_reduce")
    comm.all_reduce(full);
  else if (name == "all_reduce_max")
    comm.all_reduce_max(full);
  else
    throw std::logic_error("no collective is called " + name);
}

}  // namespace

std::vector<double> bus_bandwidths(Device& device, Comm& comm) {
  const std::vector<CollectiveCount> kinds = comm.counts();
  std::vector<double> rates;
  for (const CollectiveCount& kind : kinds) {
    const std::int64_t shard_size = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(kind.largest_bytes) / bytes_of(DType::f32, comm.size()));
    const std::int64_t size = shard_size * comm.size();
    const DeviceBlock block(device, bytes_of(DType::f32, size + shard_size));
    const Tensor full{block.data(), DType::f32, 1, size};
    const Tensor shard{full.as<float>() + size, DType::f32, 1, shard_size};
    device.zero(full);
    device.zero(shard);
    const std::unique_ptr<DeviceClock> clock = make_device_clock(device);
    for (int i = 0; i < kWarmUp; ++i) run(comm, kind.name, full, shard);
    for (int i = 0; i <= kSamples; ++i) {
      clock->mark();
      if (i < kSamples) run(comm, kind.name, full, shard);
    }
    device.synchronize();
    std::vector<double> seconds;
    for (int i = 0; i < kSamples; ++i) seconds.push_back(clock->milliseconds(i, i + 1) / 1e3);
    std::nth_element(seconds.begin(), seconds.begin() + kSamples / 2, seconds.end());
    const double wire_per_byte = kind.wire_bytes / kind.buffer_bytes;
    rates.push_back(static_cast<double>(full.bytes()) * wire_per_byte / seconds[kSamples / 2]);
  }
  return rates;
}

}  // namespace precbench
