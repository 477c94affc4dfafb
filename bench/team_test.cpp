// Ranks that fail, over real CPU collectives: the others are released, and the message names the rank.
#include "bench/team.h"

#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>

#include "bench/team_testing.h"
#include "kernels/errors.h"
#include "tools/catch.h"

using namespace precbench;

namespace {

/// Four ranks meet in a collective again and again; rank 2 throws in its third round.
template <class Failure>
void run_with_failure(const NodeShare& share, const Failure& failure) {
  run_cpu_team(share, [&](int rank, Device&, Comm& comm) {
    float value = 1;
    for (int round = 0; round < 100; ++round) {
      if (round == 3 && rank == share.first + 2) throw failure;
      comm.all_reduce(Tensor{&value, DType::f32, 1, 1});
    }
  });
}

}  // namespace

TEST_CASE("a team runs the ranks of its share", "[team]") {
  std::mutex mutex;
  std::multiset<int> ran;
  const auto body = [&](int rank) {
    const std::lock_guard lock(mutex);
    ran.insert(rank);
  };
  run_team({8, 4, 3, 0}, body, [] {});
  CHECK(ran == std::multiset<int>{4, 5, 6});
}

TEST_CASE("a rank that throws ends the team, and the message names it", "[team]") {
  CHECK_THROWS_WITH(run_with_failure(all_ranks(4), std::runtime_error("boom")), "rank 2: boom");
  CHECK_THROWS_WITH(run_with_failure({8, 4, 4, 0}, std::runtime_error("boom")), "rank 6: boom");
}

TEST_CASE("the exceptions that become a status keep their type", "[team]") {
  try {
    run_with_failure(all_ranks(3), OutOfMemory("12 bytes wanted", 12));
    FAIL("nothing was thrown");
  } catch (const OutOfMemory& error) {
    CHECK(std::string(error.what()) == "rank 2: 12 bytes wanted");
    CHECK(error.bytes == 12);
  }
  CHECK_THROWS_AS(run_with_failure(all_ranks(3), Diverged("the loss")), Diverged);
  CHECK_THROWS_AS(run_with_failure(all_ranks(3), Unsupported("no")), Unsupported);
  CHECK_THROWS_AS(run_with_failure(all_ranks(3), InvalidInput("no")), InvalidInput);
  CHECK_THROWS_AS(run_with_failure(all_ranks(3), std::bad_alloc()), std::bad_alloc);
}
