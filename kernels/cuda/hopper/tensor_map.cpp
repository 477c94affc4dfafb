// Tensor maps are made by the driver. The program must start without one, so its function is asked for when needed
// instead of being linked.
#include "kernels/cuda/hopper/tensor_map.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <stdexcept>

namespace precbench::hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    constexpr unsigned kSince = 12000;  // the CUDA version that brought it
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                                                cudaEnableDefault, &result);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    cudaGetLastError();
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) function = nullptr;
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

}  // namespace

bool has_tensor_maps() { return encoder() != nullptr; }

CUtensorMap tensor_map(const BoxedMatrix& matrix) {
  // Its dimensions begin with the contiguous one.
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix.columns), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t pitches[1] = {static_cast<cuuint64_t>(matrix.pitch * matrix.element_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(matrix.box_columns),
                             static_cast<cuuint32_t>(matrix.box_rows)};
  const cuuint32_t strides[2] = {1, 1};
  CUtensorMap map;
  const CUresult result = encoder()(&map, matrix.type, 2, const_cast<void*>(matrix.data), sizes, pitches, box,
                                    strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                    matrix.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::logic_error(fmt::format("the driver makes no tensor map of a {} x {} matrix (CUDA error {})",
                                       matrix.rows, matrix.columns, static_cast<int>(result)));
  return map;
}

}  // namespace precbench::hopper
