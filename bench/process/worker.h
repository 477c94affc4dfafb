// A process of a sweep that runs its part of the cases on the orders of its coordinator (coordinator.h).
#pragma once

#include <string>
#include <vector>

#include "bench/process/coordinator.h"

namespace precbench {

inline constexpr int kCoordinatorGone = 1;

/// Connects to the coordinator, which must know `secret`, runs `command` on this process's share of every
/// case that it sends, and returns the exit status that the coordinator sends at the end; kCoordinatorGone if
/// it ended without one, 130 after an interrupt. Disconnects from a coordinator that sends a case outside
/// `grid` or any other unexpected message. Only the coordinator keeps time. Leaves no child running. Says at
/// once on standard error if nobody is there yet. Throws InvalidInput if there is no coordinator in time, or if
/// it does not admit this process or ends the sweep because processes cannot agree.
int run_worker(const Nodes& nodes, const Address& address, const std::string& secret,
               const std::vector<Case>& grid, const std::vector<std::string>& command,
               const Timeouts& timeouts = {});

}  // namespace precbench
