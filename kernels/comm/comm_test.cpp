// Collectives between CPU ranks that are threads: values against sums made in the test, byte accounts, and
// aborts when a rank fails.
#include "kernels/comm/comm.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/comm/comm_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

// Sizes that no number of ranks divides, and one smaller than the number of ranks.
constexpr std::int64_t kSizes[] = {1, 2, 7, 1000, 1021};

/// Returns rank r's input: BF16 values, so that both dtypes start from equal values, with magnitudes that
/// differ by rank, so that the order of additions shows.
std::vector<float> contribution(int rank, std::int64_t n) {
  return rounded(normal(100 + rank, n, rank % 2 ? 1e-3f : 10.0f));
}

/// Returns the sum over ranks in rank order in FP32.
std::vector<float> total(int ranks, std::int64_t n) {
  std::vector<float> sum = contribution(0, n);
  for (int r = 1; r < ranks; ++r) {
    const std::vector<float> more = contribution(r, n);
    for (std::int64_t i = 0; i < n; ++i) sum[i] += more[i];
  }
  return sum;
}

std::vector<float> as(DType dtype, const std::vector<float>& x) {
  return dtype == DType::f32 ? x : rounded(x);
}

/// Memory that blocks the thread that first touches it until opened, which holds a rank inside a collective
/// for as long as a test wants. Only one at a time.
class Trap {
 public:
  explicit Trap(std::size_t bytes)
      : bytes_(bytes), memory_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    caught_ = open_ = false;
    struct sigaction action = {};
    action.sa_handler = [](int) {
      caught_ = true;
      while (!open_) std::this_thread::yield();
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND);  // any other fault ends the test
    sigaction(SIGSEGV, &action, &before_);
  }
  ~Trap() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(memory_, bytes_);
  }
  Trap(const Trap&) = delete;
  Trap& operator=(const Trap&) = delete;

  float* memory() const { return static_cast<float*>(memory_); }
  void wait_for_someone() const {
    while (!caught_) std::this_thread::yield();
  }
  void open() {
    mprotect(memory_, bytes_, PROT_READ | PROT_WRITE);
    open_ = true;
  }

 private:
  inline static std::atomic<bool> caught_ = false, open_ = false;
  std::size_t bytes_;
  void* memory_;
  struct sigaction before_ = {};
};

}  // namespace

TEST_CASE("all_reduce: sum in rank order rounded once and equal on every rank", "[comm]") {
  for (int ranks : {1, 2, 3, 4})
    for (std::int64_t n : kSizes)
      for (DType dtype : {DType::f32, DType::bf16}) {
        std::vector<Owned> x;
        for (int r = 0; r < ranks; ++r) x.emplace_back(dtype, 1, n, contribution(r, n));
        on_ranks(ranks, [&](Comm& comm) { comm.all_reduce(x[comm.rank()]); });
        INFO(ranks << " ranks, " << n << " " << name_of(dtype));
        for (int r = 0; r < ranks; ++r) CHECK(x[r].floats() == as(dtype, total(ranks, n)));
      }
}

TEST_CASE("all_reduce_max: maximum over ranks and NaN if any rank has NaN", "[comm]") {
  constexpr int kRanks = 3;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  std::vector<Owned> x;
  const std::vector<std::vector<float>> values = {{1, 0, nan, 2, inf}, {2, 0, 5, nan, 3}, {0, 0, 7, inf, 1}};
  for (const std::vector<float>& v : values) x.emplace_back(DType::f32, 1, 5, v);
  on_ranks(kRanks, [&](Comm& comm) { comm.all_reduce_max(x[comm.rank()]); });
  for (int r = 0; r < kRanks; ++r) {
    const std::vector<float> got = x[r].floats();
    CHECK(got[0] == 2);
    CHECK(got[1] == 0);
    CHECK(std::isnan(got[2]));
    CHECK(std::isnan(got[3]));
    CHECK(got[4] == inf);
  }
}

TEST_CASE("subset: joins some of the ranks in the given order", "[comm]") {
  constexpr int kRanks = 6;
  std::vector<Owned> gathered;
  for (int r = 0; r < kRanks; ++r) gathered.emplace_back(DType::f32, 1, 3);
  std::vector<float> sums(kRanks);
  std::vector<int> sizes(kRanks), places(kRanks);
  on_ranks(kRanks, [&](Comm& comm) {
    const int r = comm.rank();
    const int parity = r % 2;
    const auto half = comm.subset({parity, 2 + parity, 4 + parity});
    sizes[r] = half->size();
    places[r] = half->rank();
    const Owned mine(DType::f32, 1, 1, {static_cast<float>(r)});
    half->all_gather(gathered[r], mine);
    const auto pair = comm.subset({r / 2 * 2, r / 2 * 2 + 1});
    pair->all_reduce(mine);
    sums[r] = mine.floats()[0];
  });
  for (int r = 0; r < kRanks; ++r) {
    CHECK(sizes[r] == 3);
    CHECK(places[r] == r / 2);
    const float parity = static_cast<float>(r % 2);
    CHECK(gathered[r].floats() == std::vector<float>{parity, 2 + parity, 4 + parity});
    const int first = r / 2 * 2;  // of its pair
    CHECK(sums[r] == static_cast<float>(2 * first + 1));
  }
}

TEST_CASE("all_gather: concatenates the shards in rank order", "[comm]") {
  for (int ranks : {2, 3, 4})
    for (std::int64_t n : kSizes)
      for (DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
        std::vector<Owned> full, shards;
        std::vector<std::byte> expected;
        for (int r = 0; r < ranks; ++r) {
          full.emplace_back(dtype, 1, ranks * n);
          shards.emplace_back(dtype, 1, n);
          for (std::int64_t i = 0; i < shards[r].tensor().bytes(); ++i) {
            shards[r].tensor().as<std::uint8_t>()[i] = static_cast<std::uint8_t>(random_bits(r, i));
            expected.push_back(shards[r].bytes()[i]);
          }
        }
        on_ranks(ranks, [&](Comm& comm) { comm.all_gather(full[comm.rank()], shards[comm.rank()]); });
        INFO(ranks << " ranks, " << n << " " << name_of(dtype));
        for (int r = 0; r < ranks; ++r) CHECK(full[r].bytes() == expected);
      }
}

TEST_CASE("reduce_scatter: gives each rank its part of the sum", "[comm]") {
  for (int ranks : {2, 3, 4})
    for (std::int64_t n : kSizes)
      for (DType dtype : {DType::f32, DType::bf16}) {
        std::vector<Owned> full, shards;
        for (int r = 0; r < ranks; ++r) {
          full.emplace_back(dtype, 1, ranks * n, contribution(r, ranks * n));
          shards.emplace_back(dtype, 1, n);
        }
        on_ranks(ranks, [&](Comm& comm) { comm.reduce_scatter(shards[comm.rank()], full[comm.rank()]); });
        const std::vector<float> sum = as(dtype, total(ranks, ranks * n));
        INFO(ranks << " ranks, " << n << " " << name_of(dtype));
        for (int r = 0; r < ranks; ++r) {
          CHECK(shards[r].floats() == std::vector<float>(sum.begin() + r * n, sum.begin() + (r + 1) * n));
          CHECK(full[r].floats() == contribution(r, ranks * n));  // the source is unchanged
        }
        // In place: the shard is this rank's part of the source.
        on_ranks(ranks, [&](Comm& comm) {
          const Tensor& mine = full[comm.rank()];
          comm.reduce_scatter(mine.elements(comm.rank() * n, n), mine);
        });
        for (int r = 0; r < ranks; ++r) {
          const std::vector<float> values = full[r].floats();
          CHECK(std::equal(values.begin() + r * n, values.begin() + (r + 1) * n, sum.begin() + r * n));
        }
      }
}

TEST_CASE("collectives: many in a row do not interfere", "[comm]") {
  constexpr int kRanks = 3, kRounds = 200;
  std::vector<std::int64_t> wrong(kRanks);
  on_ranks(kRanks, [&](Comm& comm) {
    const int rank = comm.rank();
    for (int round = 0; round < kRounds; ++round) {
      // Buffers live only for one round: a late reader would read freed memory or the next round's data.
      const Owned x(DType::f32, 1, 5, std::vector<float>(5, static_cast<float>(round + rank)));
      const Owned full(DType::f32, 1, 15), shard(DType::f32, 1, 5);
      comm.all_reduce(x);
      comm.all_gather(full, x);
      comm.reduce_scatter(shard, full);
      const float sum = 3.0f * static_cast<float>(round) + 3;
      wrong[rank] += x.floats() != std::vector<float>(5, sum);
      wrong[rank] += full.floats() != std::vector<float>(15, sum);
      wrong[rank] += shard.floats() != std::vector<float>(5, 3 * sum);
    }
  });
  CHECK(wrong == std::vector<std::int64_t>(kRanks));
}

TEST_CASE("counts: bytes equal those of a ring algorithm", "[comm]") {
  class Counter final : public OpObserver {
   public:
    void begin(const OpCost&) override { ++open; }
    void end(const OpCost& cost) override {
      --open;
      bytes += cost.bytes;
      names += std::string(cost.name) + " ";
      communication = communication && cost.op_class == OpClass::communication;
    }
    int open = 0;
    double bytes = 0;
    std::string names;
    bool communication = true;
  };
  for (bool dry : {false, true})
    for (int ranks : {1, 2, 4}) {
      std::vector<Counter> counters(ranks);
      std::vector<double> sent(ranks);
      const auto body = [&](Comm& comm) {
        Counter& counter = counters[comm.rank()];
        comm.set_observer(&counter);
        const Owned full(DType::bf16, 1, 100 * ranks, std::vector<float>(100 * ranks));
        const Owned shard(DType::bf16, 1, 100, std::vector<float>(100));
        comm.all_reduce(full);
        comm.all_gather(full, shard);
        comm.reduce_scatter(shard, full);
        for (const CollectiveCount& c : comm.counts()) sent[comm.rank()] += c.wire_bytes;
      };
      if (dry)
        for (int r = 0; r < ranks; ++r) body(*make_dry_comm(r, ranks));
      else
        on_ranks(ranks, body);
      for (int r = 0; r < ranks; ++r) {
        INFO((dry ? "dry" : "local") << ", rank " << r << " of " << ranks);
        // Two passes of an all-reduce and one each of the others, each of n - 1 shards of 200 bytes.
        CHECK(sent[r] == 4 * 200.0 * (ranks - 1));
        CHECK(counters[r].bytes == sent[r]);
        CHECK(counters[r].open == 0);
        CHECK(counters[r].communication);
        CHECK(counters[r].names == (ranks == 1 ? "" : "all_reduce bf16 all_gather reduce_scatter bf16 "));
      }
    }
}

TEST_CASE("counts: FP32 and BF16 all_reduce are counted separately", "[comm]") {
  std::vector<std::string> names(2);
  on_ranks(2, [&](Comm& comm) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Owned full(dtype, 1, 128, std::vector<float>(128)), shard(dtype, 1, 64, std::vector<float>(64));
      comm.all_reduce(full);
      comm.reduce_scatter(shard, full);
    }
    for (const CollectiveCount& c : comm.counts()) names[comm.rank()] += c.name + ",";
  });
  for (const std::string& of_rank : names)
    CHECK(of_rank == "all_reduce,reduce_scatter,all_reduce bf16,reduce_scatter bf16,");
}

TEST_CASE("abort: releases waiting ranks and makes later calls throw", "[comm]") {
  constexpr int kRanks = 3;
  const auto group = make_local_group(kRanks);
  std::vector<std::unique_ptr<Comm>> comms;
  const auto device = make_cpu_device(1);
  for (int r = 0; r < kRanks; ++r) comms.push_back(group->join(r, *device));
  std::vector<Owned> shards(kRanks, Owned(DType::f32, 1, 1, {1})), full(kRanks, Owned(DType::f32, 1, kRanks));
  std::atomic<int> failures = 0;
  const auto gather = [&](int r) {
    try {
      comms[r]->all_gather(full[r], shards[r]);
    } catch (const std::runtime_error&) {
      ++failures;
    }
  };
  std::thread first(gather, 0), second(gather, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(failures == 0);  // they wait for the third
  group->abort();
  first.join();
  second.join();
  CHECK(failures == 2);
  // The third rank completes the arrivals, but the others are gone and their buffers may be freed: it must
  // not have read them.
  gather(2);
  CHECK(failures == 3);
  for (const Owned& f : full) CHECK(f.bytes() == Owned(DType::f32, 1, kRanks).bytes());
}

TEST_CASE("abort: a released rank stays until nobody reads its buffer", "[comm]") {
  // Ranks 0 and 1 gather between themselves, and rank 2 fails before rank 0 has read anything.
  constexpr std::int64_t kShard = 1024;
  const auto group = make_local_group(3);
  const auto device = make_cpu_device(1);
  std::vector<std::unique_ptr<Comm>> comms, pair;
  for (int r = 0; r < 3; ++r) comms.push_back(group->join(r, *device));
  for (int r = 0; r < 2; ++r) pair.push_back(comms[r]->subset({0, 1}));
  Trap trap(2 * kShard * sizeof(float));
  std::vector<float> other(2 * kShard);
  float* const full[] = {trap.memory(), other.data()};
  std::vector<std::vector<float>> shards(2, std::vector<float>(kShard, 1));
  std::atomic<int> left = 0, failures = 0;
  const auto gather = [&](int r) {
    try {
      pair[r]->all_gather({full[r], DType::f32, 1, 2 * kShard}, {shards[r].data(), DType::f32, 1, kShard});
    } catch (const std::runtime_error&) {
      ++failures;
    }
    std::fill(shards[r].begin(), shards[r].end(), 0.0f);  // simulates freed memory
    ++left;
  };
  std::thread first(gather, 0), second(gather, 1);
  trap.wait_for_someone();
  group->abort();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(left == 0);
  trap.open();
  first.join();
  second.join();
  // The collective that all had entered completes; the next one throws.
  CHECK(failures == 0);
  for (const float* gathered : full) CHECK(std::count(gathered, gathered + 2 * kShard, 1.0f) == 2 * kShard);
  for (int r : {0, 1}) gather(r);
  CHECK(failures == 2);
}
