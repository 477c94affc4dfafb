// Threads of ranks. See team.h.
#include "bench/team.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace precbench {

void run_team(int size, const std::function<void(int)>& body, const std::function<void()>& abort) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto guarded = [&](int rank) {
    try {
      body(rank);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (first) return;
      first = std::current_exception();
      abort();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) threads.emplace_back(guarded, rank);
  guarded(0);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace precbench
