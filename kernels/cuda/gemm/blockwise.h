// Our own GEMMs for FP8 operands with block scales, as candidates of matmul's plans next to cuBLASLt's. The
// kernels are in blockwise_sm90a.cuh, for Hopper only; on other GPUs, and in a build without them, there are
// none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/numerics/formats.h"

namespace precbench {

/// D[M,N] = or += A[M,k] B[N,k]^T. A has scales of 1x128, B of 1x128 or 128x128, laid out as in
/// scale_layout.h.
struct BlockwiseGemm {
  std::int64_t M, N, K;
  DType a, b, d;
  bool square_b;  ///< B has 128x128 scales
  bool accumulate;
  std::int32_t alignment;  ///< bytes, of the least aligned of the three matrices
};

/// Device pointers.
struct BlockwiseBuffers {
  const void *a, *b;
  const float *a_scale, *b_scale;
  void* d;
};

struct BlockwiseKernel {
  const char* name;  ///< for the record: "own 256x128", the rows and columns of a tile
  DType a, b, d;
  bool square_b, accumulate;
  void (*launch)(const BlockwiseGemm& gemm, const BlockwiseBuffers& buffers, cudaStream_t stream);
};

/// Returns the kernels that support the problem on a GPU of this compute capability (90 is 9.0), the widest
/// tiles first; all of them give the same bits. A launch throws std::runtime_error if CUDA rejects it.
std::vector<const BlockwiseKernel*> blockwise_kernels(const BlockwiseGemm& gemm, int compute_capability);

/// Returns every Hopper kernel of this build (blockwise_sm90a.cu).
std::span<const BlockwiseKernel> hopper_blockwise_kernels();

}  // namespace precbench
