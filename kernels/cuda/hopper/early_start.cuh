// Kernels that start while the previous one runs (programmatic dependent launch, compute capability 9.0+):
//
//   before   |==== blocks =======|               the kernel before, from any library
//   plain                        |- gap -|==== blocks ====|
//   early        |---- wait -----|==== blocks ====|
//
// As soon as all blocks of the previous kernel have started, those of an early one occupy free SM resources.
// They wait there until the previous kernel has ended and its writes are visible. The previous kernel does
// not have to signal anything.
//
// The rule that makes it safe: each of our kernels calls wait_for_work_before() first, in every thread,
// unconditionally (tools/ci/check_early_start.py). So it ends after all earlier work, and the next kernel may
// rely on that.
#pragma once

namespace precbench {

/// Call before the first access to global memory. No effect in a launch that is not early.
__device__ inline void wait_for_work_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace precbench
