// What cuBLASLt's grouped call (grouped_plans.h) wants to find in device memory: where each group's matrices lie and how large they
// are, which the routing decides, and scales of 1x128 or 1x32, group by group.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace precbench {

/// Bytes of scales of 128 x 128 values: FP32 of 1x128, or exponents of 1x32.
inline constexpr std::int64_t kScaleTileBytes = 512;

/// Where the part of a matrix that is a group's begins: base + expert * of_expert + the group's first row / 128 * of_tile, bytes.
struct GroupAddress {
  void* base = nullptr;
  std::int64_t of_expert = 0, of_tile = 0;
};

/// What cuBLASLt's grouped call reads from device memory, an entry for each group: D[m, n] = A[m, k] B[n, k]^T. Pitches in
/// elements; D's is n.
struct GroupTable {
  void **a, **b, **d, **a_scales, **b_scales;
  std::int32_t *m, *n, *k, *pitch_a, *pitch_b;

  /// In bytes(groups) of device memory that begin at a multiple of 16.
  static GroupTable at(void* memory, std::int64_t groups);
  /// A multiple of 256.
  static std::int64_t bytes(std::int64_t groups);
};

/// What a table is made of. Groups of rows have `columns` and `depth`, those of k `rows` and `columns`.
struct GroupedMatrices {
  GroupAddress a, b, d, a_scales, b_scales;
  std::int32_t rows, columns, depth, pitch_a, pitch_b;
  bool over_k;
};
/// `offsets`: the groups' first rows, i32 [groups + 1], multiples of 128.
void launch_group_table(const GroupTable& table, const GroupedMatrices& of, const std::int32_t* offsets,
                        std::int64_t groups, cudaStream_t stream);

/// Each group's scales together: `from` is [outer][tiles] of kScaleTileBytes, of the whole matrix, `to` a group's [outer][its
/// tiles] behind another's. What belongs to no group is left out.
void launch_gather_scales(void* to, const void* from, std::int64_t outer, std::int64_t tiles,
                          const std::int32_t* offsets, std::int64_t groups, cudaStream_t stream);

}  // namespace precbench
