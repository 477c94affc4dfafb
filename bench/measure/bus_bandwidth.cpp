// Times collectives alone on the device's clock. See bus_bandwidth.h.
#include "bench/measure/bus_bandwidth.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/base/errors.h"
#include "kernels/gpu/graph.h"

namespace precbench {
namespace {

constexpr int kWarmUp = 3, kSamples = 11;
/// Deviation of the random numbers that are sent, because zeros may move faster. So small that repeated sums
/// over a thousand ranks stay finite.
constexpr float kDeviation = 1e-20f;

/// Returns the dtype; names of sums in BF16 end with it.
DType type_of(const std::string& name) { return name.ends_with(" bf16") ? DType::bf16 : DType::f32; }

constexpr const char *kExchange = "all_to_all", *kPass = "send_recv";

/// Returns the elements of the second buffer that a collective needs beside the full one; 0 if none.
std::int64_t other_size(const std::string& name, std::int64_t shard, std::int64_t full) {
  if (name == "all_gather" || name.starts_with("reduce_scatter")) return shard;
  return name == kExchange || name == kPass ? full : 0;
}

/// `shard`: second buffer, if the collective needs one.
void run(Comm& comm, const std::string& name, const Tensor& full, const Tensor& shard) {
  const std::string kind = name.substr(0, name.find(' '));
  const std::vector<std::int64_t> parts(comm.size(), full.size() / comm.size());
  if (kind == "all_gather")
    comm.all_gather(full, shard);
  else if (kind == "reduce_scatter")
    comm.reduce_scatter(shard, full);
  else if (kind == "all_reduce")
    comm.all_reduce(full);
  else if (kind == "all_reduce_max")
    comm.all_reduce_max(full);
  else if (kind == kExchange)
    comm.all_to_all(shard, parts, full, parts);
  else if (kind == kPass)  // around a ring, as context ranks pass keys
    comm.send_recv(shard, (comm.rank() + comm.size() - 1) % comm.size(), full, (comm.rank() + 1) % comm.size());
  else
    throw std::logic_error("no collective is called " + name);
}

double wire_bytes(const Comm& comm, const std::string& name) {
  for (const CollectiveCount& kind : comm.counts())
    if (kind.name == name) return kind.wire_bytes;
  return 0;
}

std::optional<double> bus_bandwidth(Device& device, Arena& arena, Comm& comm, const CollectiveCount& kind) {
  const Scope scope(arena);
  const DType dtype = type_of(kind.name);
  const std::int64_t shard_size =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kind.largest_bytes) / bytes_of(dtype, comm.size()));
  Tensor full, shard;
  try {
    full = arena.push_uncounted(dtype, 1, shard_size * comm.size());
    if (const std::int64_t size = other_size(kind.name, shard_size, full.size()))
      shard = arena.push_uncounted(dtype, 1, size);
  } catch (const OutOfMemory&) {
    return std::nullopt;  // on every rank, so that none waits for the others
  }
  device.init_normal({full, kDeviation, 1, 0});
  if (!shard.empty()) device.init_normal({shard, kDeviation, 2, 0});
  const double sent_before = wire_bytes(comm, kind.name);
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
  const double sent = (wire_bytes(comm, kind.name) - sent_before) / (kWarmUp + kSamples);
  return sent / seconds[kSamples / 2];
}

}  // namespace

std::vector<std::optional<double>> bus_bandwidths(Device& device, Arena& arena,
                                                  const std::vector<Comm*>& comms,
                                                  const std::vector<CollectiveCount>& kinds) {
  std::vector<std::optional<double>> rates;
  for (const CollectiveCount& kind : kinds) {
    const auto comm = std::find_if(comms.begin(), comms.end(),
                                   [&](const Comm* c) { return c->number() == kind.largest_in; });
    rates.push_back(bus_bandwidth(device, arena, **comm, kind));
  }
  return rates;
}

}  // namespace precbench
