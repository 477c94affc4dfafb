// Selects among our block-scaled GEMMs. See blockwise.h.
#include "kernels/cuda/gemm/blockwise.h"

#include <limits>

#include "kernels/cuda/hopper/tensor_map.h"

namespace precbench {

#ifndef PRECBENCH_HAS_SM90A
std::span<const BlockwiseKernel> hopper_blockwise_kernels() { return {}; }
#endif

std::vector<const BlockwiseKernel*> blockwise_kernels(const BlockwiseGemm& gemm, int compute_capability) {
  std::vector<const BlockwiseKernel*> kernels;
  // wgmma exists only on Hopper: later generations have other instructions.
  if (compute_capability != 90 || hopper_blockwise_kernels().empty() || !hopper::has_tensor_maps())
    return kernels;
  constexpr std::int64_t kCopied = 16;  // bytes: TMA's alignment of addresses and rows
  if (gemm.alignment < kCopied || gemm.K % kCopied != 0 || bytes_of(gemm.d, gemm.N) % kCopied != 0)
    return kernels;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;  // coordinates are 32 bits
  if (gemm.M > kMost || gemm.N > kMost || gemm.K > kMost) return kernels;
  for (const BlockwiseKernel& kernel : hopper_blockwise_kernels())
    if (kernel.a == gemm.a && kernel.b == gemm.b && kernel.d == gemm.d && kernel.square_b == gemm.square_b &&
        kernel.accumulate == gemm.accumulate)
      kernels.push_back(&kernel);
  return kernels;
}

}  // namespace precbench
