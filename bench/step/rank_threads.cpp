// Runs ranks in threads. See rank_threads.h.
#include "bench/step/rank_threads.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Rethrows the current exception with the rank's number in front. Exceptions whose message is the same on
/// every rank, or that have no message of their own, pass unchanged.
[[noreturn]] void rethrow_from(int rank) {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(fmt::format("rank {}: {}", rank, error.what()), error.bytes);
  } catch (const InvalidInput&) {
    throw;
  } catch (const Unsupported&) {
    throw;
  } catch (const Diverged&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("rank {}: {}", rank, error.what()));
  }
}

}  // namespace

void run_rank_threads(const NodeShare& share, const std::function<void(int)>& body,
                      const std::function<void()>& abort, StepBoard* board) {
  if (board) board->open(share);
  std::mutex mutex;
  std::exception_ptr first;
  int failed = 0;
  const auto guarded = [&](int rank, const std::function<void(int)>& work) {
    try {
      work(rank);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (first) return;
      first = std::current_exception();
      failed = rank;
      if (board) board->note_failure(rank, message_of(first));
      abort();
    }
  };
  std::vector<std::thread> threads;
  guarded(share.first, [&](int first_rank) {
    for (int rank = first_rank + 1; rank < first_rank + share.local; ++rank) {
      try {
        threads.emplace_back(guarded, rank, std::cref(body));
      } catch (const std::system_error& error) {
        throw std::runtime_error(
            fmt::format("cannot start the thread of rank {}: {}", rank, error_text(error.code())));
      }
    }
    body(first_rank);
  });
  for (std::thread& thread : threads) thread.join();
  if (!first) return;
  try {
    std::rethrow_exception(first);
  } catch (...) {
    if (share.world == 1) throw;
    rethrow_from(failed);
  }
}

}  // namespace precbench
