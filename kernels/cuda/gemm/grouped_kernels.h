// Interface of our grouped GEMM kernels for grouped.cpp: each is one of the Hopper GEMMs (plain_sm90a.cuh,
// blockwise_sm90a.cuh) with a tile order that reads the groups (tile_order_sm90a.cuh). In a build without
// them there are none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/numerics/tensor.h"

namespace precbench {

/// Scales of both operands: none; A 1x128 and B 128x128; both 1x128; both per row or per tensor.
enum class GroupedScales : std::uint8_t { none, block_128x128, block_1x128, row_or_tensor };

/// Groups of rows: D[capacity, columns], A[capacity, depth], B_e[columns, depth], stacked. Groups of k:
/// D_e[rows, columns], stacked, A[rows, capacity], B[columns, capacity].
struct GroupedGemm {
  bool over_k;
  std::int64_t groups, capacity;
  std::int64_t rows, columns;  ///< of a group's D; rows only with over_k
  std::int64_t depth;          ///< k, for groups of rows
};

/// Device pointers.
struct GroupedBuffers {
  const void *a, *b;
  const float *a_scale, *b_scale;
  bool a_scale_rows,
      b_scale_rows;  ///< for GroupedScales::row_or_tensor: one per row; else per tensor, B's per group
  void* d;
  const std::int32_t *offsets, *counts;
};

struct GroupedKernel {
  const char* name;
  DType a, b, d;
  GroupedScales scales;
  bool a_mn_major, b_mn_major;  ///< BF16 operands that are stored [k, rows]
  bool over_rows, over_k;       ///< supported groups
  bool accumulate, fast;
  void (*launch)(const GroupedGemm& gemm, const GroupedBuffers& buffers, cudaStream_t stream);
};

/// Return every Hopper kernel of this build (grouped_plain_sm90a.cu, grouped_blockwise_sm90a.cu); of several
/// for one problem the first is the best.
std::span<const GroupedKernel> hopper_plain_grouped_kernels();
std::span<const GroupedKernel> hopper_blockwise_grouped_kernels();

}  // namespace precbench
