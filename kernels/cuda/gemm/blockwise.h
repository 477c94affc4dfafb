// Our own GEMMs for FP8 operands with scales of blocks, as matmul's plans see them: candidates beside cuBLASLt's. The
// kernels are in blockwise_sm90a.cuh, for Hopper alone; on any other GPU, and in a build without them, there are none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/numerics/formats.h"

namespace precbench {

/// D[M,N] = or += A[M,k] B[N,k]^T. A has scales of 1x128, B of 1x128 or 128x128, laid out as in scale_layout.h.
struct BlockwiseGemm {
  std::int64_t M, N, K;
  DType a, b, d;
  bool square_b;  ///< B's scales are of 128x128
  bool accumulate;
  std::int32_t alignment;  ///< bytes, of the worst aligned of the three matrices
};

/// In device memory.
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

/// Those that take the problem on a GPU of this compute capability (90 is 9.0), the widest tiles first; all of them give
/// the same bits. A kernel's launch throws std::runtime_error where CUDA refuses it.
std::vector<const BlockwiseKernel*> blockwise_kernels(const BlockwiseGemm& gemm, int compute_capability);

/// Every kernel of this build for Hopper (blockwise_sm90a.cu).
std::span<const BlockwiseKernel> hopper_blockwise_kernels();

}  // namespace precbench
