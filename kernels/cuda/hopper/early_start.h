// Which kernels of a captured step start before the one in front of them has ended. See early_start.cuh.
#pragma once

#include <cuda_runtime_api.h>

namespace precbench::hopper {

/// Lets our own kernels start early that come after one kernel and nothing else. Returns how many do; none where the driver
/// is of a CUDA before 12.3, or where they were compiled for GPUs before 9.0. Throws std::runtime_error.
int start_early(cudaGraph_t graph);

}  // namespace precbench::hopper
