// Barriers in shared memory (mbarrier): how threads and the copy engine tell each other that a buffer is full or free.
//
// A barrier counts arrivals of threads and bytes of copies. When both are complete its phase ends and the next one
// begins by itself. A waiter names the phase by its parity: 0, 1, 0, ... Needs compute capability 9.0.
#pragma once

#include <cstdint>

namespace precbench::hopper {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// One barrier; 8 bytes of shared memory.
struct Barrier {
  std::uint64_t word;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals)
                 : "memory");
  }

  /// One arrival, which also says how many bytes the copies of this phase bring.
  __device__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
                 "r"(bytes)
                 : "memory");
  }

  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }

  /// An arrival at the barrier that stands at this place in block `rank` of the cluster.
  __device__ void arrive_at(int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }

  /// Returns when the phase of this parity has ended. A barrier whose first phase has not ended answers for parity 1
  /// at once: who fills buffers starts with that parity, as all of them are free.
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

/// Makes initialised barriers visible to the copy engine and to the other blocks of a cluster, who must still be
/// synchronized with.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Every thread of the cluster's blocks waits for all the others.
__device__ inline void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ inline int rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// The `threads` threads that name barrier `id` (1 to 15; 0 is __syncthreads) wait for each other.
__device__ inline void synchronize_some(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as `threads` threads' arrival at barrier `id` without waiting: the calling warps count with all their lanes.
__device__ inline void arrive_at_some(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The registers of each thread of this warpgroup: all four warps call it.
template <int kCount>
__device__ inline void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace precbench::hopper
