// The parallel loop.
#include "results/record/parallel.h"

#include <atomic>
#include <vector>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("for_each_index: visits each index once with any number of threads", "[parallel]") {
  for (const std::size_t threads : {0, 1, 2, 100})
    for (const std::size_t count : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> visits(count);
      for_each_index(count, threads, [&](std::size_t i) { ++visits[i]; });
      INFO(threads << " threads, " << count << " indices");
      for (const std::atomic<int>& times : visits) CHECK(times == 1);
    }
}
