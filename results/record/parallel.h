// Parallel loop over the machine's cores.
#pragma once

#include <cstddef>
#include <functional>

namespace precbench {

/// Calls `visit` once with each of 0 .. count - 1, in no particular order, on this thread and up to `threads`
/// - 1 others (at most the machine's cores). Returns when all are done. `visit` must not throw.
void for_each_index(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& visit);

}  // namespace precbench
