// Whether launches may begin early. See launch.cuh.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/cuda/launch.cuh"

namespace precbench::cuda {
namespace {

/// Edges between kernels of a captured step that say so came with CUDA 12.3.
constexpr int kFirstDriver = 12030;

bool can_launch_early() {
  if (const char* wish = std::getenv("PRECBENCH_EARLY_LAUNCHES"); wish && std::string_view(wish) == "0")
    return false;
  int device = 0, major = 0, driver = 0;
  PRECBENCH_CHECK(cudaGetDevice(&device));
  PRECBENCH_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  PRECBENCH_CHECK(cudaDriverGetVersion(&driver));
  if (major < 9) return false;
  if (driver >= kFirstDriver) return true;
  fmt::print(
      stderr,
      "warning: the NVIDIA driver supports CUDA {}.{}, launches that overlap need 12.3; steps are slower\n",
      driver / 1000, driver % 1000 / 10);
  return false;
}

}  // namespace

bool early_launches() {
  static const bool can = can_launch_early();  // a machine's GPUs are of one kind
  return can;
}

}  // namespace precbench::cuda
