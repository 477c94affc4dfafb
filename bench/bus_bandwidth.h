// How fast the collectives of a step run when nothing else does.
#pragma once

#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device.h"

namespace precbench {

/// Bytes per second on the wire of every kind of collective in comm.counts(), in its order, with the largest
/// buffer that kind had: the median of a few calls in a row. A collective itself: all ranks call it, after the
/// same steps. Throws OutOfMemory where the buffer does not fit beside what the device holds.
std::vector<double> bus_bandwidths(Device& device, Comm& comm);

}  // namespace precbench
