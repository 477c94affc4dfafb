// GPU entry points of a build without CUDA: they report that there is no GPU and why.
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"
#include "kernels/gpu/graph.h"

namespace precbench {

VisibleGpus find_gpus() {
  return {0, "this build has no CUDA: configure with a CUDA toolkit on the PATH", ""};
}

std::string compiled_architectures() { return ""; }

GpuProperties gpu_properties(int) { throw Unsupported(find_gpus().reason); }

GpuMemory gpu_memory(int) { throw Unsupported(find_gpus().reason); }

std::unique_ptr<Device> make_gpu_device(int, const GpuOptions&) { throw Unsupported(find_gpus().reason); }

bool has_graphs(const Device&) { return false; }

std::unique_ptr<StepGraph> capture_step(Device& device, const std::function<void()>&, KernelStart) {
  throw Unsupported("the " + device.name() + " device has no graphs");
}

std::unique_ptr<CommGroup> make_gpu_group(int, int) { throw Unsupported(find_gpus().reason); }

std::unique_ptr<DeviceClock> make_device_clock(Device& device) { return make_host_clock(device); }

}  // namespace precbench
