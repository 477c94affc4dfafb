// How fast the collectives of a step run when nothing else does.
#pragma once

#include <optional>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"

namespace precbench {

/// Bytes per second on the wire of every kind of collective in `kinds`, in its order, with the largest buffer
/// that kind had and between the ranks that shared it: the median of a few calls in a row. Null for a kind
/// whose buffers do not fit into what the arena has left. A collective itself: all ranks call it, after the
/// same steps, with arenas that are equally full. `comms`: one and all its subsets. `kinds`: what counts() was
/// after a step, before anything else was sent.
std::vector<std::optional<double>> bus_bandwidths(Device& device, Arena& arena,
                                                  const std::vector<Comm*>& comms,
                                                  const std::vector<CollectiveCount>& kinds);

}  // namespace precbench
