// CUDA driver functions, looked up at run time: the program must start without a driver, so none is linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace precbench::hopper {

/// Returns null if the driver has no such function. `since`: CUDA version that introduced the wanted variant,
/// as 12030.
void* driver_function(const char* name, unsigned since);

/// Returns it with the type of the header's declaration, as in driver_function<decltype(&cuFuncGetName)>.
template <class Function>
Function driver_function(const char* name, unsigned since) {
  return reinterpret_cast<Function>(driver_function(name, since));
}

}  // namespace precbench::hopper
