// Functions of the CUDA driver, asked for when needed: the program must start without a driver, so none is linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace precbench::hopper {

/// Null where the driver has none of that name. `since`: the CUDA version that brought the form wanted, as 12030.
void* driver_function(const char* name, unsigned since);

/// Likewise, with the type of the header's declaration, as in driver_function<decltype(&cuFuncGetName)>.
template <class Function>
Function driver_function(const char* name, unsigned since) {
  return reinterpret_cast<Function>(driver_function(name, since));
}

}  // namespace precbench::hopper
