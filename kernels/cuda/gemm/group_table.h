// Device-memory inputs of cuBLASLt's grouped call (grouped_plans.h): addresses and sizes of each group's
// matrices, which depend on the routing, and scales of 1x128 or 1x32, group by group.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace precbench {

/// Bytes of the scales of 128 x 128 values: FP32 for 1x128, or exponents for 1x32.
inline constexpr std::int64_t kScaleTileBytes = 512;

/// Start of a group's part of a matrix: base + expert * of_expert + the group's first row / 128 * of_tile, in
/// bytes.
struct GroupAddress {
  void* base = nullptr;
  std::int64_t of_expert = 0, of_tile = 0;
};

/// Arrays that cuBLASLt's grouped call reads from device memory, one entry per group: D[m, n] = A[m, k] B[n,
/// k]^T. Pitches in elements; D's is n.
struct GroupTable {
  void **a, **b, **d, **a_scales, **b_scales;
  std::int32_t *m, *n, *k, *pitch_a, *pitch_b;

  /// Returns a table in bytes(groups) of device memory that begins at a multiple of 16.
  static GroupTable at(void* memory, std::int64_t groups);
  /// Returns a multiple of 256.
  static std::int64_t bytes(std::int64_t groups);
};

/// Inputs of a table. Groups of rows have `columns` and `depth`, those of k `rows` and `columns`.
struct GroupedMatrices {
  GroupAddress a, b, d, a_scales, b_scales;
  std::int32_t rows, columns, depth, pitch_a, pitch_b;
  bool over_k;
};
/// `offsets`: the groups' first rows, i32 [groups + 1], multiples of 128.
void launch_group_table(const GroupTable& table, const GroupedMatrices& of, const std::int32_t* offsets,
                        std::int64_t groups, cudaStream_t stream);

/// Gathers each group's scales: `from` is [outer][tiles] of kScaleTileBytes, of the whole matrix; `to` holds
/// the groups one after another, each [outer][its tiles]. Tiles outside all groups are skipped.
void launch_gather_scales(void* to, const void* from, std::int64_t outer, std::int64_t tiles,
                          const std::int32_t* offsets, std::int64_t groups, cudaStream_t stream);

}  // namespace precbench
