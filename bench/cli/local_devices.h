// The devices of this machine that `precbench list` asks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace precbench {

struct LocalDevice {
  std::string name;  ///< "cpu", or as the driver reports it
  std::unique_ptr<Device> device;
};

/// Returns the CPU and, if there is one, the first GPU.
std::vector<LocalDevice> local_devices();

}  // namespace precbench
