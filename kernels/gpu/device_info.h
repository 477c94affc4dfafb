// What the rest of the program may know about GPUs, whoever makes them: which device a case means, which GPUs are there,
// what they are, and how to open one. A vendor's room (kernels/cuda) defines the functions that ask the machine; in a
// build without one they say so (without_cuda.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"

namespace precbench {

/// The GPU devices that a case may name, whether or not this build has them: "cuda".
std::vector<std::string> gpu_device_names();
bool is_gpu(const std::string& device);
/// What "auto" stands for on this machine: the device of its GPUs, "cpu" where there is none.
std::string best_device();
/// Of queries and keys.
struct HeadSizes {
  std::int64_t head_dim;
  std::int64_t q_normed = 0, k_normed = 0;  ///< elements that QK-norm takes together; 0: none
};

/// Returns why a GPU device does not support a model of these sizes; null if it does, and for other devices. Needs no GPU.
/// The shapes that attention supports are known only where it runs.
std::optional<std::string> gpu_unsupported_reason(const std::string& device, std::int64_t width,
                                                  const HeadSizes& heads);

/// Returns why a Hopper GPU runs library kernels in place of ours, which need a driver with TMA tensor maps; null if it
/// runs ours, and for other GPUs.
std::optional<std::string> hopper_fallback_reason(int compute_capability, bool tensor_maps);

/// One GPU and the libraries that drive it; fields of the record's environment. Unknown strings are empty.
struct GpuProperties {
  int ordinal = 0;
  std::string name;            ///< "NVIDIA H200"
  std::string description;     ///< for people: name, compute capability, memory, the library of its GEMMs
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
  std::string device;  ///< their name in a case: "cuda"; empty in a build without any
};
VisibleGpus find_gpus();

/// Free and total bytes of the device's memory as the driver sees them now, other processes included.
struct GpuMemory {
  std::int64_t free_bytes = 0, total_bytes = 0;
};

/// Throws Unsupported with find_gpus().reason, or InvalidInput for an ordinal that is not there.
GpuProperties gpu_properties(int ordinal);
GpuMemory gpu_memory(int ordinal);

struct GpuOptions {
  /// GEMM candidates are timed at first use; off: the heuristic's first answer. Timing may choose differently
  /// from run to run, and another algorithm adds in another order: off where runs must agree bit for bit.
  bool autotune = true;
  bool deterministic = false;      ///< attention's backward adds in a fixed order
  std::string attention = "auto";  ///< "auto", "cudnn" or "own"; see CudaDevice::set_attention
  std::string gemm = "auto";       ///< "auto", "cublaslt" or "own"; see CudaDevice::set_gemm
  std::string grouped = "own";     ///< "own", "cublaslt" or "loop"; see CudaDevice::set_grouped
};
/// The calling thread's current device from now on: a device is used by the thread that made it. Throws
/// Unsupported with find_gpus().reason, or where `attention` asks for what this build has not; InvalidInput for an
/// ordinal that is not there or an unknown attention, gemm or grouped; std::runtime_error for what the GPU's libraries refuse.
std::unique_ptr<Device> make_gpu_device(int ordinal, const GpuOptions& options = {});

/// `local` of `size` ranks, on GPUs; the ranks that join are numbered over all processes. Where local < size every
/// process makes such a group, and NCCL_COMM_ID (host:port) tells them where the first one is. Throws Unsupported in a
/// build without NCCL.
std::unique_ptr<CommGroup> make_gpu_group(int size, int local);

}  // namespace precbench
