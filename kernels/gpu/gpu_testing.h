// For tests that need a GPU: whether there is one. Their output says where they did nothing.
#pragma once

#include <memory>

#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "tools/testing/catch.h"

namespace precbench {

/// False, with a warning that says why, where no GPU can be used.
inline bool gpu_here() {
  const VisibleGpus gpus = find_gpus();
  if (gpus.count == 0) WARN("skipped: " << gpus.reason);
  return gpus.count > 0;
}

/// The first GPU; null, with the warning, where there is none.
inline std::unique_ptr<Device> gpu_or_skip() { return gpu_here() ? make_gpu_device(0) : nullptr; }

}  // namespace precbench
