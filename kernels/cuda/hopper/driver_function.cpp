// See driver_function.h.
#include "kernels/cuda/hopper/driver_function.h"

namespace precbench::hopper {

void* driver_function(const char* name, unsigned since) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &result);
#else
  static_cast<void>(since);
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  cudaGetLastError();
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
}

}  // namespace precbench::hopper
