// How kernels are launched: grids whose blocks all fit at once, and launches that begin while the kernel before them ends
// (programmatic dependent launch, compute capability 9.0):
//
//   before   |==== blocks ====|          the kernel before, whoever's it is
//   plain                      |- gap -|==== blocks ====|
//   early                  |- wait -|==== blocks ====|
//
// As the last blocks of the kernel before leave, those of an early one take their places; they are set up, and wait there
// until all of it has ended and what it wrote can be seen. In a captured step the edge between the two says so.
//
// The rule that makes it safe: a kernel launched early calls wait_for_work_before() first, in every thread, whatever it
// does then. So it ends after all that was before it, and the next may rely on that.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"

namespace precbench::cuda {

/// Blocks of a persistent grid: as many as fit, and at most `limit`.
template <class Kernel>
int persistent_grid(const CudaDevice& device, Kernel kernel, int threads, std::size_t shared_bytes,
                    std::int64_t limit) {
  // A block may have 48 KiB unasked, but what the kernel itself declares counts, too.
  if (shared_bytes > 0)
    PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared_bytes)));
  int per_sm = 0;
  PRECBENCH_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, shared_bytes));
  const std::int64_t blocks = static_cast<std::int64_t>(per_sm) * device.sm_count();
  return static_cast<int>(blocks < limit ? blocks : limit);
}

/// Before the first access to device memory.
__device__ inline void wait_for_work_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Whether the current GPU and its driver can; where the GPU could and the driver cannot, that is said once on standard
/// error. PRECBENCH_EARLY_LAUNCHES=0 in the environment: no.
bool early_launches();

/// kernel<<<grid, threads, shared_bytes, stream>>>(args...), early where that can be had.
template <class... Parameters, class... Args>
void launch_early(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared_bytes,
                  cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = early_launches() ? 1 : 0;
  PRECBENCH_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

}  // namespace precbench::cuda
