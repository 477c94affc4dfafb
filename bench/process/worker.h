// A process of a sweep that takes part in the cases of its leader (coordinator.h) and decides nothing itself.
#pragma once

#include <string>
#include <vector>

#include "bench/process/coordinator.h"

namespace precbench {

inline constexpr int kLeaderGone = 1;

/// Meets the leader, which knows `secret`, runs `command` on this process's share of every case that it sends, and
/// returns the exit status that the leader sends at the end: kLeaderGone where it ended without, 130 after an
/// interrupt. A leader that sends a case which is not one of `grid`, or anything else that ours does not, is left.
/// The leader alone keeps time. No child is left running. Throws InvalidInput where there is no leader.
int follow(const Nodes& nodes, const Address& address, const std::string& secret,
           const std::vector<Case>& grid, const std::vector<std::string>& command,
           const Patience& patience = {});

}  // namespace precbench
