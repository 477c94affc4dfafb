// What the rest of the program may know about NVIDIA GPUs without including CUDA's headers: which are there,
// what they are, and how to open one. In a build without CUDA the same functions exist and say so
// (without_cuda.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device/device.h"

namespace precbench {

/// One GPU and the libraries that drive it; fields of the record's environment. Unknown strings are empty.
struct GpuProperties {
  int ordinal = 0;
  std::string name;            ///< "NVIDIA H200"
  int compute_capability = 0;  ///< 10 * major + minor: 90
  int sm_count = 0;
  std::int64_t memory_bytes = 0;  ///< of the device in all
  std::string uuid;               ///< "GPU-xxxxxxxx-..."
  std::string pci_bus_id;
  std::string driver;                     ///< "580.159.04"; from NVML
  int ecc = -1;                           ///< 1 on, 0 off, -1 unknown
  double power_limit_w = 0;               ///< enforced limit; 0 unknown
  std::string cuda_runtime, cuda_driver;  ///< CUDA versions: "13.0"
  std::string cublaslt, cudnn, nccl;      ///< "13.1.0"; empty: not in this build
};

/// The GPUs this program can use, or in one line why there is none (no CUDA in this build, no driver, a
/// driver that is too old, compute capability below 8.0). Never throws.
struct VisibleGpus {
  int count = 0;
  std::string reason;  ///< empty when count > 0
};
VisibleGpus find_gpus();

/// Free and total bytes of the device's memory as the driver sees them now, other processes included.
struct GpuMemory {
  std::int64_t free_bytes = 0, total_bytes = 0;
};

/// Throws Unsupported with find_gpus().reason, or InvalidInput for an ordinal that is not there.
GpuProperties gpu_properties(int ordinal);
GpuMemory gpu_memory(int ordinal);

struct CudaOptions {
  /// GEMM candidates are timed at first use; off: the heuristic's first answer. Timing may choose differently
  /// from run to run, and another algorithm adds in another order: off where runs must agree bit for bit.
  bool autotune = true;
  bool deterministic = false;      ///< attention's backward adds in a fixed order
  std::string attention = "auto";  ///< "auto", "cudnn" or "own"; see CudaDevice::set_attention
};
/// The calling thread's current device from now on: a device is used by the thread that made it. Throws
/// Unsupported with find_gpus().reason, or where `attention` asks for what this build has not; InvalidInput for an
/// ordinal that is not there or an unknown attention; std::runtime_error for what CUDA or cuBLASLt refuse.
std::unique_ptr<Device> make_cuda_device(int ordinal, const CudaOptions& options = {});

}  // namespace precbench
