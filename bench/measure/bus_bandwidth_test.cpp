// Bandwidth of collectives between CPU ranks: between which ranks, with which buffers, and without enough
// memory.
#include "bench/measure/bus_bandwidth.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/step/rank_threads_testing.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kBlockBytes = 1 << 20, kGathered = 4096;

struct Probed {
  std::vector<std::optional<double>> rates;
  std::map<std::string, CollectiveCount> step, before, after;
  bool zeros = true;          ///< true if only zeros were sent
  std::int64_t counted = -1;  ///< bytes that the arena accounts for the probe
};

std::map<std::string, CollectiveCount> by_name(const std::vector<CollectiveCount>& kinds) {
  std::map<std::string, CollectiveCount> counts;
  for (const CollectiveCount& kind : kinds) counts[kind.name] = kind;
  return counts;
}

/// Every rank runs a step's collectives: all ranks reduce 8 numbers, pairs gather kGathered elements, and
/// ranks at the same place of each pair reduce kGathered / 2. Then all ranks gather twice as much at once, as
/// when weights are saved, and measure with `capacity` bytes of memory.
std::vector<Probed> probe(std::int64_t capacity) {
  std::vector<Probed> results(kRanks);
  run_cpu_rank_threads(all_ranks(kRanks), [&](int r, Device& device, Comm& comm) {
    const auto pair = comm.subset({r / 2 * 2, r / 2 * 2 + 1});
    const auto replicas = comm.subset({r % 2, r % 2 + 2});
    std::vector<float> full(2 * kGathered), shard(kGathered / 2);
    comm.all_reduce({full.data(), DType::f32, 1, 8});
    pair->all_gather({full.data(), DType::f32, 1, kGathered}, {shard.data(), DType::f32, 1, kGathered / 2});
    replicas->all_reduce({shard.data(), DType::f32, 1, kGathered / 2});

    const std::vector<CollectiveCount> kinds = comm.counts();
    comm.all_gather({full.data(), DType::f32, 1, 2 * kGathered},
                    {shard.data(), DType::f32, 1, kGathered / 2});

    std::vector<std::byte> block(kBlockBytes);
    Arena arena(block.data(), capacity);
    Probed& probed = results[r];
    probed.step = by_name(kinds);
    probed.before = by_name(comm.counts());
    probed.rates = bus_bandwidths(device, arena, {&comm, pair.get(), replicas.get()}, kinds);
    probed.after = by_name(comm.counts());
    probed.zeros = std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
    probed.counted = arena.highest().total();
  });
  return results;
}

}  // namespace

TEST_CASE("bus_bandwidths: each collective runs between the ranks of the step's largest buffer", "[comm]") {
  for (Probed& probed : probe(kBlockBytes)) {
    REQUIRE(probed.rates.size() == 2);
    for (const auto& rate : probed.rates) CHECK(rate.value_or(0) > 0);
    for (const auto& [name, passes] : {std::pair{"all_gather", 1}, std::pair{"all_reduce", 2}}) {
      INFO(name);
      const CollectiveCount &step = probed.step[name], &before = probed.before[name];
      const CollectiveCount& after = probed.after[name];
      CHECK(step.largest_in == (passes == 1 ? 1 : 2));
      CHECK(step.largest_bytes == 4.0 * kGathered / passes);
      const double calls = static_cast<double>(after.calls - before.calls);
      CHECK(calls > 10);
      // In each pass, two ranks of a ring send half of a buffer; four would send three quarters.
      CHECK(after.buffer_bytes - before.buffer_bytes == calls * step.largest_bytes);
      CHECK(after.wire_bytes - before.wire_bytes == calls * step.largest_bytes * passes / 2);
    }
    CHECK(!probed.zeros);
    CHECK(probed.counted == 0);  // the accounts are the step's only
  }
}

TEST_CASE("bus_bandwidths: a collective whose buffers do not fit has no rate on any rank", "[comm]") {
  // The gather needs the full buffer and half of it again; the reduction only its own half.
  for (const Probed& probed : probe(4 * kGathered)) {
    REQUIRE(probed.rates.size() == 2);
    CHECK(probed.rates[0].has_value());  // all_reduce, which ran first
    CHECK(!probed.rates[1].has_value());
  }
}

TEST_CASE("bus_bandwidths: collectives of FP8 gradients and of rings have rates too", "[comm]") {
  std::vector<std::vector<std::optional<double>>> rates(kRanks);
  run_cpu_rank_threads(all_ranks(kRanks), [&](int r, Device& device, Comm& comm) {
    std::vector<std::uint8_t> sent(kGathered), received(kGathered);
    const std::vector<std::int64_t> parts(kRanks, kGathered / kRanks);
    std::vector<float> amaxes(4);
    comm.all_to_all({received.data(), DType::e4m3, 1, kGathered}, parts,
                    {sent.data(), DType::e4m3, 1, kGathered}, parts);
    comm.all_reduce_max({amaxes.data(), DType::f32, 1, 4});
    comm.send_recv({received.data(), DType::e4m3, 1, kGathered}, (r + kRanks - 1) % kRanks,
                   {sent.data(), DType::e4m3, 1, kGathered}, (r + 1) % kRanks);
    const std::vector<CollectiveCount> kinds = comm.counts();
    std::vector<std::byte> block(kBlockBytes);
    Arena arena(block.data(), kBlockBytes);
    rates[r] = bus_bandwidths(device, arena, {&comm}, kinds);
  });
  for (const auto& of_rank : rates) {
    REQUIRE(of_rank.size() == 3);
    for (const std::optional<double>& rate : of_rank) CHECK(rate.value_or(0) > 0);
  }
}
