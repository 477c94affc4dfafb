// Runs every rank in a thread of its own, waits for all, and passes on the first failure.
#pragma once

#include <functional>

#include "bench/process/rendezvous.h"
#include "bench/process/step_board.h"

namespace precbench {

/// Runs body(rank) for every rank of the share at the same time, the first on the calling thread. When a body
/// throws, `abort` is called once, which must release ranks that wait for the failed one. The first exception
/// is rethrown here after all threads have ended. With several ranks, the message of OutOfMemory, and of any
/// exception that is not one of the project's own, names the rank that failed. A thread that cannot be
/// started counts as a failure of the first rank. The failure is noted on `board` at once, in case another
/// rank never returns.
void run_rank_threads(const NodeShare& share, const std::function<void(int)>& body,
                      const std::function<void()>& abort, StepBoard* board = nullptr);

}  // namespace precbench
