// Failing ranks over real CPU collectives: the others are released, and the message names the failed rank.
#include "bench/step/rank_threads.h"

#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>

#include "bench/step/rank_threads_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"

using namespace precbench;

namespace {

/// Runs ranks that meet in a collective repeatedly; the share's third rank throws in its fourth round.
template <class Failure>
void run_with_failure(const NodeShare& share, const Failure& failure) {
  run_cpu_rank_threads(share, [&](int rank, Device&, Comm& comm) {
    float value = 1;
    for (int round = 0; round < 100; ++round) {
      if (round == 3 && rank == share.first + 2) throw failure;
      comm.all_reduce(Tensor{&value, DType::f32, 1, 1});
    }
  });
}

}  // namespace

TEST_CASE("run_rank_threads: runs exactly the ranks of the share", "[rank_threads]") {
  std::mutex mutex;
  std::multiset<int> ran;
  const auto body = [&](int rank) {
    const std::lock_guard lock(mutex);
    ran.insert(rank);
  };
  run_rank_threads({8, 4, 3, 0}, body, [] {});
  CHECK(ran == std::multiset<int>{4, 5, 6});
}

TEST_CASE("run_rank_threads: a throwing rank ends the others and is named in the message", "[rank_threads]") {
  CHECK_THROWS_WITH(run_with_failure(all_ranks(4), std::runtime_error("boom")), "rank 2: boom");
  CHECK_THROWS_WITH(run_with_failure({8, 4, 4, 0}, std::runtime_error("boom")), "rank 6: boom");
}

TEST_CASE("run_rank_threads: exceptions that become a status keep their type", "[rank_threads]") {
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

TEST_CASE("run_rank_threads: a thread that cannot be started counts as a failure",
          "[rank_threads][address-space]") {
  const pid_t pid = in_background([] {
    signal(SIGABRT, SIG_DFL);  // not the test framework's handler
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * 4096 + (rlim_t{256} << 20);  // for stacks of 8 MiB by default
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_AS, &limit);
    std::atomic<bool> released = false;
    try {
      run_rank_threads(
          all_ranks(2000), [&](int) { released.wait(false); },
          [&] {
            released = true;
            released.notify_all();
          });
    } catch (const std::runtime_error& error) {
      const std::string message = error.what();
      return message.starts_with("rank 0: cannot start the thread of rank ") &&
                     message.ends_with(": Resource temporarily unavailable")
                 ? 0
                 : 1;
    }
    return 2;
  });
  CHECK(exit_status(pid) == 0);
}
