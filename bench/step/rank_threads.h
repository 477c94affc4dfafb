// A rank is a thread: starts one per rank, waits for all, and passes on the first failure.
#pragma once

#include <functional>

#include "bench/process/rendezvous.h"
#include "bench/process/step_board.h"

namespace precbench {

/// Runs body(rank) for every rank of the share at the same time, the first on the calling thread. When a body
/// throws, `abort` is called once, which must release ranks that wait for the failed one; the first exception
/// is rethrown here after all threads have ended. Of several ranks, the message of what the project's other
/// exceptions do not cover names the one that failed, and so does OutOfMemory's.
/// A thread that cannot be started is a failure of the first rank.
/// The failure is noted on `board` at once, for the case that another rank does not come back.
void run_rank_threads(const NodeShare& share, const std::function<void(int)>& body,
                      const std::function<void()>& abort, StepBoard* board = nullptr);

}  // namespace precbench
