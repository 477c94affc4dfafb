// Barriers in shared memory (mbarrier), by which threads and the copy engine signal that a buffer is full or
// empty.
//
// A barrier counts arrivals of threads and bytes of copies. When both are complete its phase ends and the
// next one begins. A waiter names the phase by its parity: 0, 1, 0, ... Needs compute capability 9.0.
#pragma once

#include <cstdint>

namespace precbench::hopper {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// One mbarrier; 8 bytes of shared memory.
struct Barrier {
  std::uint64_t word;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals)
                 : "memory");
  }

  /// Arrives and adds the bytes that the copies of this phase will bring.
  __device__ void arrive_expect_tx(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
                 "r"(bytes)
                 : "memory");
  }

  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }

  /// Arrives at the barrier at the same address in block `rank` of the cluster.
  __device__ void arrive_cluster(int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }

  /// Returns when the phase of this parity has ended. On a barrier in its first phase, waiting for parity 1
  /// returns at once: a producer starts with that parity, since all buffers are empty.
  __device__ void wait(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "bra again;\n"
        "ready:\n"
        "}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialized barriers visible to the copy engine and to the cluster's other blocks, which still need
/// to synchronize.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Synchronizes all threads of the cluster's blocks.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ inline int cluster_ctarank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Synchronizes `threads` threads at named barrier `id` (1 to 15; 0 is __syncthreads).
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives at named barrier `id` of `threads` threads without waiting; the calling warps count with all their
/// lanes.
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// setmaxnreg: sets the registers of each thread of this warpgroup. All four warps must call it.
template <int kCount>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace precbench::hopper
