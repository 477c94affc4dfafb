// A rank is a thread: starts one per rank, waits for all, and passes on the first failure.
#pragma once

#include <functional>

namespace precbench {

/// Runs body(rank) for every rank in [0, size) at the same time; rank 0 on the calling thread. When a body
/// throws, `abort` is called once, which must release ranks that wait for the failed one; the first exception
/// is rethrown here after all threads have ended.
void run_team(int size, const std::function<void(int)>& body, const std::function<void()>& abort);

}  // namespace precbench
