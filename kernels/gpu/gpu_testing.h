// Helpers for tests that need a GPU. Their output shows which tests were skipped.
#pragma once

#include <memory>

#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "kernels/testing/catch.h"

namespace precbench {

/// Returns false, with a warning that says why, if no GPU can be used.
inline bool gpu_here() {
  const VisibleGpus gpus = find_gpus();
  if (gpus.count == 0) WARN("skipped: " << gpus.reason);
  return gpus.count > 0;
}

/// Returns the first GPU, or null with a warning if there is none.
inline std::unique_ptr<Device> gpu_or_skip() { return gpu_here() ? make_gpu_device(0) : nullptr; }

}  // namespace precbench
