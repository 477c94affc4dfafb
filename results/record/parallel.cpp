// Threads take the next index until none is left. See parallel.h.
#include "results/record/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/base/usable_cpus.h"

namespace precbench {
namespace {

/// With more threads the work here is limited by memory bandwidth.
constexpr std::size_t kMostThreads = 16;

}  // namespace

void for_each_index(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& visit) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) visit(i);
  };
  threads = std::min({threads, count, kMostThreads, static_cast<std::size_t>(usable_cpus().threads())});
  std::vector<std::jthread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < threads) others.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads available: the existing ones do the work
  }
  work();
}

}  // namespace precbench
