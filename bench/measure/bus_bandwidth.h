// Measures the bandwidth of a step's collectives while nothing else runs.
#pragma once

#include <optional>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"

namespace precbench {

/// Returns the bytes per second on the wire of every collective in `kinds`, in its order: the median of a few
/// calls in a row, with the largest buffer that the collective had and between the ranks that shared it. Null
/// if the buffers do not fit into the rest of the arena. A collective itself: all ranks call it after the
/// same steps, with equally full arenas.
/// `comms`: the communicator and all its subsets. `kinds`: counts() after one step, before anything else was
/// sent.
std::vector<std::optional<double>> bus_bandwidths(Device& device, Arena& arena,
                                                  const std::vector<Comm*>& comms,
                                                  const std::vector<CollectiveCount>& kinds);

}  // namespace precbench
