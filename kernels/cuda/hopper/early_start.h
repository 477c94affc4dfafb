// Which kernels of a captured step start before the one in front of them has ended. See early_start.cuh.
#pragma once

#include <cuda_runtime_api.h>

namespace precbench::hopper {

/// The driver can: those of CUDA 12.3 and later do. Looks once.
bool has_early_starts();

/// Lets our own kernels start early that come after one kernel and nothing else. Returns how many do: 0 where the driver
/// cannot, or a kernel was compiled for GPUs before 9.0. Throws std::runtime_error.
int start_early(cudaGraph_t graph);

}  // namespace precbench::hopper
