// Opens devices. See local_devices.h.
#include "bench/cli/local_devices.h"

#include "bench/machine/verification.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"

namespace precbench {

std::vector<LocalDevice> local_devices() {
  std::vector<LocalDevice> all;
  all.push_back({"cpu", make_cpu_device(1)});
  if (find_gpus().count > 0) all.push_back({gpu_properties(0).name, open_gpu(0)});
  return all;
}

}  // namespace precbench
