// Selects the kernels of a captured step that start before the previous one has ended. See early_start.cuh.
#pragma once

#include <cuda_runtime_api.h>

namespace precbench::hopper {

/// Lets those of our kernels start early that depend on exactly one kernel. Returns their number; none if the
/// driver is older than CUDA 12.3, or if they were compiled for GPUs before 9.0. Throws std::runtime_error.
int start_early(cudaGraph_t graph);

}  // namespace precbench::hopper
