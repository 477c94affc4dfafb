// Copies by the tensor memory accelerator (TMA): one thread issues a copy, the engine moves a whole tile.
//
// A tile is a box of a matrix in global memory that a tensor map describes (tensor_map.h). Elements outside
// the matrix are read as zero and are not written. Loads complete at an mbarrier, which counts their bytes;
// stores complete in bulk groups of the issuing thread. Needs compute capability 9.0.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/hopper/barrier.cuh"

namespace precbench::hopper {

/// Loads the box that begins at (row, column) to shared memory; its bytes arrive at `full`.
__device__ inline void tma_load_2d(void* to, const CUtensorMap* map, int row, int column, Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %2}], [%4];" ::
          "r"(shared_address(to)),
      "l"(map), "r"(row), "r"(column), "r"(shared_address(&full))
      : "memory");
}

/// Like the two-dimensional version, for a map of matrices.
__device__ inline void tma_load_3d(void* to, const CUtensorMap* map, int matrix, int row, int column,
                                   Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%4, %3, %2}], "
      "[%5];" ::"r"(shared_address(to)),
      "l"(map), "r"(matrix), "r"(row), "r"(column), "r"(shared_address(&full))
      : "memory");
}

/// Multicast: loads to the same address in every block of the cluster whose bit is set in `blocks`. The bytes
/// arrive at each block's barrier at the address of `full`.
__device__ inline void tma_load_multicast_2d(std::uint16_t blocks, void* to, const CUtensorMap* map, int row,
                                             int column, Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %2}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(row), "r"(column), "r"(shared_address(&full)), "h"(blocks)
      : "memory");
}

/// Loads `bytes` (a multiple of 16) from `from` (16-byte aligned); they arrive at `full`.
__device__ inline void tma_load_1d(void* to, const void* from, int bytes, Barrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&full))
      : "memory");
}

/// Stores a box from shared memory; every thread that wrote it must first call fence_proxy_async(), followed
/// by a barrier.
__device__ inline void tma_store_2d(const CUtensorMap* map, int row, int column, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %1}], [%3];" ::"l"(map),
               "r"(row), "r"(column), "r"(shared_address(from))
               : "memory");
}

/// Like the two-dimensional version, for a map of matrices.
__device__ inline void tma_store_3d(const CUtensorMap* map, int matrix, int row, int column,
                                    const void* from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%3, %2, %1}], [%4];" ::"l"(map),
               "r"(matrix), "r"(row), "r"(column), "r"(shared_address(from))
               : "memory");
}

/// Like tma_store_2d, but adds in FP32 to global memory.
__device__ inline void tma_reduce_add_2d(const CUtensorMap* map, int row, int column, const void* from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %1}], [%3];" ::"l"(map),
      "r"(row), "r"(column), "r"(shared_address(from))
      : "memory");
}

/// Prefetches the box that begins at (row, column) into L2 for a later tma_reduce_add_2d.
__device__ inline void tma_prefetch_2d(const CUtensorMap* map, int row, int column) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%2, %1}];" ::"l"(map), "r"(row), "r"(column)
               : "memory");
}

/// Proxy fence: makes this thread's writes to shared memory visible to the copy engine.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Commits this thread's stores as a bulk group.
__device__ inline void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but the newest `kPending` bulk groups of this thread have read their shared memory.
template <int kPending>
__device__ inline void tma_store_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace precbench::hopper
