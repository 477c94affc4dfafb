// all_to_all and send_recv between CPU ranks: received data, byte counts, and errors.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/comm/comm_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

using Counts = std::vector<std::int64_t>;

/// Returns the number of elements that rank `from` sends to rank `to`; some pairs have none.
std::int64_t share(int from, int to) { return (3 * from + 5 * to) % 7; }

/// Returns the i-th of them.
float value(int from, int to, std::int64_t i) { return static_cast<float>(35 * from + 7 * to + i); }

Counts counts_from(int rank, int ranks) {
  Counts counts;
  for (int to = 0; to < ranks; ++to) counts.push_back(share(rank, to));
  return counts;
}

Counts counts_to(int rank, int ranks) {
  Counts counts;
  for (int from = 0; from < ranks; ++from) counts.push_back(share(from, rank));
  return counts;
}

std::int64_t total(const Counts& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t n : counts) sum += n;
  return sum;
}

/// Returns the message that body throws, or "".
template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("all_to_all: every rank receives its part from every other", "[comm]") {
  for (const int ranks : {2, 3, 5})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      std::vector<Owned> sends, recvs;
      std::vector<std::vector<float>> expected(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> mine;
        for (int other = 0; other < ranks; ++other) {
          for (std::int64_t i = 0; i < share(rank, other); ++i) mine.push_back(value(rank, other, i));
          for (std::int64_t i = 0; i < share(other, rank); ++i)
            expected[rank].push_back(value(other, rank, i));
        }
        sends.emplace_back(dtype, 1, total(counts_from(rank, ranks)), mine);
        recvs.emplace_back(dtype, 1, total(counts_to(rank, ranks)));
      }
      on_ranks(ranks, [&](Comm& comm) {
        const int rank = comm.rank();
        for (int round = 0; round < 20; ++round)
          comm.all_to_all(recvs[rank], counts_to(rank, ranks), sends[rank], counts_from(rank, ranks));
      });
      INFO(ranks << " ranks, " << name_of(dtype));
      for (int rank = 0; rank < ranks; ++rank) CHECK(recvs[rank].floats() == expected[rank]);
    }
}

TEST_CASE("send_recv: passes data around a ring and between two ranks", "[comm]") {
  constexpr int kRanks = 4;
  std::vector<float> around(kRanks), straight(kRanks, -1);
  std::vector<Owned> tokens, others(kRanks, Owned(DType::f32, 1, 1));
  for (int rank = 0; rank < kRanks; ++rank)
    tokens.emplace_back(DType::f32, 1, 1, std::vector{static_cast<float>(rank)});
  on_ranks(kRanks, [&](Comm& comm) {
    const int rank = comm.rank(), next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    Owned &mine = tokens[rank], &other = others[rank];
    // Once around the ring: every rank sees everybody's data, and finally its own.
    for (int step = 1; step <= kRanks; ++step) {
      comm.send_recv(other, before, mine, next);
      std::swap(mine, other);
      around[rank] += mine.floats()[0] * static_cast<float>(step);
    }
    if (rank == 1) comm.send(mine, 3);
    if (rank == 3) {
      comm.recv(other, 1);
      straight[3] = other.floats()[0];
    }
    comm.send_recv({}, Comm::kNobody, {}, Comm::kNobody);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    float expected = 0;
    for (int step = 1; step <= kRanks; ++step)
      expected += static_cast<float>((rank + kRanks - step) % kRanks * step);
    CHECK(around[rank] == expected);
  }
  CHECK(straight[3] == 1);
}

TEST_CASE("all_to_all and send_recv: bytes on the wire are counted", "[comm]") {
  for (const bool dry : {false, true}) {
    constexpr int kRanks = 3;
    std::vector<std::vector<CollectiveCount>> counts(kRanks);
    const auto body = [&](Comm& comm) {
      const int rank = comm.rank();
      const Counts to = counts_from(rank, kRanks), from = counts_to(rank, kRanks);
      const Owned send(DType::bf16, 1, total(to));
      const Owned recv(DType::bf16, 1, total(from));
      comm.all_to_all(recv, from, send, to);
      const Owned more(DType::f32, 1, 10);
      if (rank == 0) comm.send(more, 2);
      if (rank == 2) comm.recv(more, 0);
      counts[rank] = comm.counts();
    };
    if (dry)
      for (int r = 0; r < kRanks; ++r) body(*make_dry_comm(r, kRanks));
    else
      on_ranks(kRanks, body);
    // share(from, to), one row per sender: {0 5 3}, {3 1 6}, {6 4 2}.
    const double buffer[kRanks] = {18, 20, 24}, wire[kRanks] = {18, 18, 20};
    for (int r = 0; r < kRanks; ++r) {
      INFO((dry ? "dry" : "local") << ", rank " << r);
      REQUIRE(counts[r].size() == (r == 1 ? 1 : 2));
      CHECK(counts[r][0].name == "all_to_all");
      CHECK(counts[r][0].buffer_bytes == buffer[r]);
      CHECK(counts[r][0].wire_bytes == wire[r]);
      if (r == 1) continue;
      CHECK(counts[r][1].name == "send_recv");
      CHECK(counts[r][1].wire_bytes == 40);
    }
  }
}

TEST_CASE("all_to_all and send_recv: invalid counts and ranks throw by name", "[comm]") {
  const auto comm = make_dry_comm(1, 3);
  const Owned nine(DType::f32, 1, 9), codes(DType::e2m1, 1, 8);
  const auto exchange = [&](const Tensor& recv, const Counts& from, const Tensor& send, const Counts& to) {
    return refusal([&] { comm->all_to_all(recv, from, send, to); });
  };
  CHECK(exchange(nine, {3, 3, 3}, nine, {3, 3, 3}) == "");
  CHECK(exchange(nine, {3, 3}, nine, {3, 3, 3}) == "all_to_all: rank 1 of 3 receives 2 counts for 3 ranks");
  CHECK(exchange(nine, {3, 3, 3}, nine, {3, 3, 2}) ==
        "all_to_all: rank 1 of 3 sends 8 elements in a buffer of 9");
  CHECK(exchange(nine, {3, 3, 3}, nine, {-1, 3, 7}) ==
        "all_to_all: rank 1 of 3 sends -1 elements, rank 0's part");
  CHECK(exchange(nine, {3, 3, 3}, nine, {3, 2, 4}) ==
        "all_to_all: rank 1 of 3 sends itself 2 f32 and receives 3 f32");
  CHECK(exchange(codes, {4, 2, 2}, codes, {4, 2, 2}) ==
        "all_to_all: rank 1 of 3 receives e2m1, less than a byte each");
  const auto pass = [&](const Tensor& recv, int from, const Tensor& send, int to) {
    return refusal([&] { comm->send_recv(recv, from, send, to); });
  };
  CHECK(pass(nine, 0, nine, 2) == "");
  CHECK(pass(nine, 0, nine, 3) == "send_recv: rank 1 of 3 sends to rank 3, which is none");
  CHECK(pass(nine, 1, {}, Comm::kNobody) == "send_recv: rank 1 of 3 receives from itself");
  CHECK(pass({}, 2, {}, Comm::kNobody) == "send_recv: rank 1 of 3 receives from rank 2 without a buffer");
  CHECK(pass(nine, 0, nine, Comm::kNobody) ==
        "send_recv: rank 1 of 3 sends to nobody, but has a buffer for it");
}

TEST_CASE("all_to_all: disagreeing counts throw on all ranks", "[comm]") {
  constexpr int kRanks = 3;
  std::vector<std::string> messages(kRanks), sizes(kRanks);
  on_ranks(kRanks, [&](Comm& comm) {
    const int rank = comm.rank();
    // Rank 2 expects one element too many from rank 0.
    const Counts to = {1, 1, 1}, from = rank == 2 ? Counts{2, 1, 1} : Counts{1, 1, 1};
    const Owned send(DType::f32, 1, total(to)), recv(DType::f32, 1, total(from));
    messages[rank] = refusal([&] { comm.all_to_all(recv, from, send, to); });
    const Owned few(DType::f32, 1, 2), many(DType::f32, 1, 3);
    if (rank == 0) sizes[0] = refusal([&] { comm.send(few, 1); });
    if (rank == 1) sizes[1] = refusal([&] { comm.recv(many, 0); });
    // Later collectives are unaffected.
    const Owned one(DType::f32, 1, 3), two(DType::f32, 1, 3);
    comm.all_to_all(one, {1, 1, 1}, two, {1, 1, 1});
  });
  for (const std::string& message : messages)
    CHECK(message == "all_to_all: rank 0 sends rank 2 1 f32, which expects 2 f32");
  CHECK(sizes[0] == "send_recv: rank 0 of 3 sends 8 bytes to rank 1, which receives another number");
  CHECK(sizes[1] == "send_recv: rank 1 of 3 receives 12 bytes from rank 0, which sends another number");
}

TEST_CASE("abort: releases ranks that send and receive", "[comm]") {
  const auto group = make_local_group(3);
  const auto device = make_cpu_device(1);
  std::vector<std::unique_ptr<Comm>> comms;
  for (int r = 0; r < 3; ++r) comms.push_back(group->join(r, *device));
  const Owned a(DType::f32, 1, 1, {1}), b(DType::f32, 1, 1, {2}), c(DType::f32, 1, 1, {3});
  std::atomic<int> failures = 0;
  const auto failing = [&](auto&& body) {
    try {
      body();
    } catch (const std::runtime_error& error) {
      failures += std::string(error.what()) == "another rank failed";
    }
  };
  // Rank 2 never comes: one rank waits for its message to be read, the other for a message while its own is
  // pending.
  std::thread sender([&] { failing([&] { comms[0]->send(a, 2); }); });
  std::thread both([&] { failing([&] { comms[1]->send_recv(b, 2, c, 2); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(failures == 0);
  group->abort();
  sender.join();
  both.join();
  CHECK(failures == 2);
  failing([&] { comms[2]->recv(a, 0); });
  CHECK(failures == 3);
  CHECK(a.floats()[0] == 1);
}
