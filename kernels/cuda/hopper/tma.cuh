// Copies by the tensor memory accelerator (TMA): one thread asks, the engine moves a whole tile.
//
// A tile is a box of a matrix in global memory that a tensor map describes (tensor_map.h). What lies outside the matrix
// is read as zero and is not written. Loads complete at a barrier, which counts their bytes; stores complete in groups
// of the thread that asked. Needs compute capability 9.0.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/hopper/barrier.cuh"

namespace precbench::hopper {

/// The box that begins at (row, column) to shared memory; its bytes arrive at `full`.
__device__ inline void load_box(void* to, const CUtensorMap* map, int row, int column, Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %2}], [%4];" ::
          "r"(shared_address(to)),
      "l"(map), "r"(row), "r"(column), "r"(shared_address(&full))
      : "memory");
}

/// The same of a map of matrices.
__device__ inline void load_box(void* to, const CUtensorMap* map, int matrix, int row, int column,
                                Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%4, %3, %2}], "
      "[%5];" ::"r"(shared_address(to)),
      "l"(map), "r"(matrix), "r"(row), "r"(column), "r"(shared_address(&full))
      : "memory");
}

/// As load_box, to the same place of every block of the cluster whose bit is set in `blocks`: their bytes arrive at the
/// barrier that each has at the place of `full`.
__device__ inline void load_box_to(std::uint16_t blocks, void* to, const CUtensorMap* map, int row,
                                   int column, Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %2}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(row), "r"(column), "r"(shared_address(&full)), "h"(blocks)
      : "memory");
}

/// `bytes` (a multiple of 16) from `from` (16-byte aligned); they arrive at `full`.
__device__ inline void load_bytes(void* to, const void* from, int bytes, Barrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&full))
      : "memory");
}

/// A box from shared memory to its place; needs publish_stores() by every thread that wrote it, and then a barrier.
__device__ inline void store_box(const CUtensorMap* map, int row, int column, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %1}], [%3];" ::"l"(map),
               "r"(row), "r"(column), "r"(shared_address(from))
               : "memory");
}

/// The same of a map of matrices.
__device__ inline void store_box(const CUtensorMap* map, int matrix, int row, int column, const void* from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%3, %2, %1}], [%4];" ::"l"(map),
               "r"(matrix), "r"(row), "r"(column), "r"(shared_address(from))
               : "memory");
}

/// As store_box, but added in FP32 to what is there.
__device__ inline void add_box(const CUtensorMap* map, int row, int column, const void* from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %1}], [%3];" ::"l"(map),
      "r"(row), "r"(column), "r"(shared_address(from))
      : "memory");
}

/// The box that begins at (row, column) is on its way to L2, where add_box will find it.
__device__ inline void prefetch_box(const CUtensorMap* map, int row, int column) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%2, %1}];" ::"l"(map), "r"(row), "r"(column)
               : "memory");
}

/// What this thread wrote to shared memory becomes visible to the copy engine.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Ends a group of stores of this thread.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but the newest `kPending` groups of this thread have read their shared memory.
template <int kPending>
__device__ inline void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace precbench::hopper
