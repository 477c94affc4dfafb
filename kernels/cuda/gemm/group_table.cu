// The kernels of group_table.h.
#include "kernels/cuda/gemm/group_table.h"

#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/grouped.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

constexpr int kTableThreads = 256;

__device__ inline void* begin_of(const GroupAddress& matrix, std::int64_t group, std::int64_t first) {
  return static_cast<std::byte*>(matrix.base) + group * matrix.of_expert +
         first / kGroupedPad * matrix.of_tile;
}

__global__ void group_table_kernel(GroupTable table, GroupedMatrices of, const std::int32_t* offsets,
                                   int groups) {
  wait_for_work_before();
  const int g = static_cast<int>(blockIdx.x) * kTableThreads + static_cast<int>(threadIdx.x);
  if (g >= groups) return;
  const std::int32_t first = offsets[g], rows = offsets[g + 1] - first;
  table.a[g] = begin_of(of.a, g, first);
  table.b[g] = begin_of(of.b, g, first);
  table.d[g] = begin_of(of.d, g, first);
  table.a_scales[g] = begin_of(of.a_scales, g, first);
  table.b_scales[g] = begin_of(of.b_scales, g, first);
  table.m[g] = of.over_k ? of.rows : rows;
  table.n[g] = of.columns;
  table.k[g] = of.over_k ? rows : of.depth;
  table.pitch_a[g] = of.pitch_a;
  table.pitch_b[g] = of.pitch_b;
}

/// A block copies a tile: 128 threads, 4 bytes each.
__global__ void gather_scales_kernel(std::uint32_t* to, const std::uint32_t* from, std::int64_t tiles,
                                     const std::int32_t* offsets, int groups) {
  wait_for_work_before();
  constexpr std::int64_t kWords = kScaleTileBytes / 4;
  const std::int64_t tile = blockIdx.x, outer = blockIdx.y, outers = gridDim.y;
  if (tile >= offsets[groups] / kGroupedPad) return;
  int before = 0, behind = groups;  // the last non-empty group that begins at or before the tile
  while (behind - before > 1) {
    const int middle = (before + behind) / 2;
    (offsets[middle] / kGroupedPad <= tile ? before : behind) = middle;
  }
  const std::int64_t first = offsets[before] / kGroupedPad, count = offsets[before + 1] / kGroupedPad - first;
  to[(first * outers + outer * count + tile - first) * kWords + threadIdx.x] =
      from[(outer * tiles + tile) * kWords + threadIdx.x];
}

/// Returns the bytes of an array in a table, which begins at a multiple of 16.
std::int64_t array_bytes(std::int64_t groups, std::size_t entry) {
  return detail::padded(groups * static_cast<std::int64_t>(entry), 16);
}

}  // namespace

GroupTable GroupTable::at(void* memory, std::int64_t groups) {
  auto* at = static_cast<std::byte*>(memory);
  GroupTable table;
  for (void*** pointers : {&table.a, &table.b, &table.d, &table.a_scales, &table.b_scales}) {
    *pointers = reinterpret_cast<void**>(at);
    at += array_bytes(groups, sizeof(void*));
  }
  for (std::int32_t** sizes : {&table.m, &table.n, &table.k, &table.pitch_a, &table.pitch_b}) {
    *sizes = reinterpret_cast<std::int32_t*>(at);
    at += array_bytes(groups, sizeof(std::int32_t));
  }
  return table;
}

std::int64_t GroupTable::bytes(std::int64_t groups) {
  return detail::padded(
      5 * array_bytes(groups, sizeof(void*)) + 5 * array_bytes(groups, sizeof(std::int32_t)), 256);
}

void launch_group_table(const GroupTable& table, const GroupedMatrices& of, const std::int32_t* offsets,
                        std::int64_t groups, cudaStream_t stream) {
  group_table_kernel<<<static_cast<unsigned>((groups + kTableThreads - 1) / kTableThreads), kTableThreads, 0, stream>>>(
      table, of, offsets, static_cast<int>(groups));
  PRECBENCH_CHECK(cudaGetLastError());
}

void launch_gather_scales(void* to, const void* from, std::int64_t outer, std::int64_t tiles,
                          const std::int32_t* offsets, std::int64_t groups, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(outer));
  gather_scales_kernel<<<grid, kScaleTileBytes / 4, 0, stream>>>(static_cast<std::uint32_t*>(to),
                                                                 static_cast<const std::uint32_t*>(from),
                                                                 tiles, offsets, static_cast<int>(groups));
  PRECBENCH_CHECK(cudaGetLastError());
}

}  // namespace precbench
