// Kernels that start while the one before them runs (programmatic dependent launch, compute capability 9.0 and later):
//
//   before   |==== blocks =======|               the kernel before, whoever's it is
//   plain                        |- gap -|==== blocks ====|
//   early        |---- wait -----|==== blocks ====|
//
// As soon as all blocks of the kernel before have begun, those of an early one take the places that are free or become so.
// They wait there until all of it has ended and what it wrote can be seen. Nobody's kernel must give a sign for that.
//
// The rule that makes it safe: each of our kernels calls wait_for_work_before() first, in every thread, whatever it does
// then (tools/ci/check_early_start.py). So it ends after all that was before it, and the next may rely on that.
#pragma once

namespace precbench {

/// Before the first access to global memory. Without effect in a launch that is not early.
__device__ inline void wait_for_work_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace precbench
