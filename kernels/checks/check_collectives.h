// Checks of collectives between devices with sums that are known: small integers, exact in FP32 and BF16.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/checks/finding.h"
#include "kernels/comm/comm.h"

namespace precbench::checks {

/// Makes the device of a rank, in that rank's thread.
using MakeRankDevice = std::function<std::unique_ptr<Device>(int rank)>;

/// Runs body(device, comm) on every rank of a group, each in a thread. A rank that throws releases the others; of
/// several exceptions the lowest rank's is rethrown.
void run_ranks(int ranks, CommGroup& group, const MakeRankDevice& make_device,
               const std::function<void(Device&, Comm&)>& body);

/// Judges all_reduce, all_gather, reduce_scatter and all_to_all over all ranks, and a copy between each pair, on
/// `elements` (a multiple of the ranks) per buffer. One finding for each; none for a single rank.
Findings check_collectives(int ranks, CommGroup& group, const MakeRankDevice& make_device,
                           std::int64_t elements);

}  // namespace precbench::checks
