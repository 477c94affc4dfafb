// A process of a sweep that takes part in the cases of its coordinator (coordinator.h) and decides nothing itself.
#pragma once

#include <string>
#include <vector>

#include "bench/process/coordinator.h"

namespace precbench {

inline constexpr int kCoordinatorGone = 1;

/// Meets the coordinator, which knows `secret`, runs `command` on this process's share of every case that it sends, and
/// returns the exit status that the coordinator sends at the end: kCoordinatorGone where it ended without, 130 after an
/// interrupt. A coordinator that sends a case which is not one of `grid`, or anything else that ours does not, is left.
/// The coordinator alone keeps time. No child is left running. Throws InvalidInput where there is no coordinator.
int run_worker(const Nodes& nodes, const Address& address, const std::string& secret,
               const std::vector<Case>& grid, const std::vector<std::string>& command,
               const Timeouts& timeouts = {});

}  // namespace precbench
