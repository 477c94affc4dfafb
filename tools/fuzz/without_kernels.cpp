// Stubs: no target computes, so kernels are not linked, and `--recipe native`, which asks for a device, is refused.
#include "bench/machine/verification.h"
#include "kernels/base/errors.h"
#include "kernels/device/devices.h"

namespace precbench {

std::unique_ptr<Device> make_cpu_device(int) { throw InvalidInput("fuzz targets have no device"); }
std::unique_ptr<Device> open_gpu(int, const GpuOptions&) {
  throw InvalidInput("fuzz targets have no device");
}

}  // namespace precbench
