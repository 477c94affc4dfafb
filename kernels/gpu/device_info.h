// Vendor-independent information about GPUs: the device that a case names, the available GPUs, their
// properties, and how to open one. A vendor's module (kernels/cuda) implements the functions that query the
// machine; a build without one reports that (without_cuda.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/native_path.h"

namespace precbench {

/// Returns the GPU devices that a case may name, even if this build lacks them: "cuda".
std::vector<std::string> gpu_device_names();
bool is_gpu(const std::string& device);
/// Returns the device that "auto" selects on this machine: its GPUs' device, or "cpu" without GPUs.
std::string best_device();
/// Head sizes of queries and keys.
struct HeadSizes {
  std::int64_t head_dim;
  std::int64_t q_normed = 0, k_normed = 0;  ///< elements that QK-norm normalizes together; 0: no norm
};

/// Returns why a GPU device does not support a model of these sizes; null if it does, and for other devices. Needs no GPU.
/// The shapes that attention supports are known only where it runs.
std::optional<std::string> gpu_unsupported_reason(const std::string& device, std::int64_t width,
                                                  const HeadSizes& heads);

/// Returns why a Hopper GPU runs library kernels in place of ours, which need a driver with TMA tensor maps; null if it
/// runs ours, and for other GPUs.
std::optional<std::string> hopper_fallback_reason(int compute_capability, bool tensor_maps);

/// One GPU and its libraries: fields of the record's environment. Unknown strings are empty.
struct GpuProperties {
  int ordinal = 0;
  std::string name;            ///< "NVIDIA H200"
  std::string description;     ///< for people: name, compute capability, memory, GEMM library
  int compute_capability = 0;  ///< 10 * major + minor: 90
  int sm_count = 0;
  std::int64_t memory_bytes = 0;  ///< total memory of the device
  std::string uuid;               ///< "GPU-xxxxxxxx-..."
  std::string pci_bus_id;
  std::string driver;                     ///< "580.159.04"; from NVML
  int ecc = -1;                           ///< 1 on, 0 off, -1 unknown
  double power_limit_w = 0;               ///< enforced limit; 0 unknown
  std::string cuda_runtime, cuda_driver;  ///< CUDA versions: "13.0"
  std::string cublaslt, cudnn, nccl;      ///< "13.1.0"; empty: not in this build
};

/// The GPUs that this program can use, or why there is none in one line: no CUDA in this build, no driver, a
/// driver that is too old, or compute capability below 8.0. Never throws.
struct VisibleGpus {
  int count = 0;
  std::string reason;   ///< empty when count > 0
  std::string device;   ///< device name in a case: "cuda"; empty in a build without GPU support
  bool driver = false;  ///< a GPU driver is loaded, so that a GPU is to be expected
};
/// Asks the driver once per process. Says so if it does not answer for a minute (slow_notice.h).
VisibleGpus find_gpus();
/// Returns the warning that "auto" selects the CPU although a GPU driver is loaded; null if there is nothing to warn of.
std::optional<std::string> cpu_fallback_warning(const VisibleGpus& gpus);

/// Returns the GPU architectures that this build has code for, as CMake names them: "80 89-real 90a-real 100".
/// Empty in a build without GPU support.
std::string compiled_architectures();

/// Code that a GPU would run: compiled for it, made by the driver from an older GPU's PTX, or none.
enum class GpuCode : std::uint8_t { compiled, jit, none };
/// `architectures` as compiled_architectures() returns them; 90 is 9.0.
GpuCode code_for(int compute_capability, const std::string& architectures);

/// Free and total bytes of device memory as the driver reports them, other processes included.
struct GpuMemory {
  std::int64_t free_bytes = 0, total_bytes = 0;
};

/// Throws Unsupported with find_gpus().reason, or InvalidInput for an ordinal that does not exist.
GpuProperties gpu_properties(int ordinal);
GpuMemory gpu_memory(int ordinal);

struct GpuOptions {
  /// Time GEMM candidates at first use; off: take the heuristic's first choice. Timing may choose differently
  /// between runs, and another algorithm adds in another order: off for bitwise reproducible runs.
  bool autotune = true;
  bool deterministic = false;      ///< attention backward adds in a fixed order
  std::string attention = "auto";  ///< "auto", "cudnn" or "own"; see CudaDevice::set_attention
  std::string gemm = "auto";       ///< "auto", "cublaslt" or "own"; see CudaDevice::set_gemm
  std::string grouped = "own";     ///< "own", "cublaslt" or "loop"; see CudaDevice::set_grouped
  DemotedPaths demoted = {};       ///< GEMMs that are emulated although the GPU has them
};
/// Opens a GPU and makes it the calling thread's current device: a device must be used by the thread that
/// made it. Throws Unsupported with find_gpus().reason, or if this build lacks the requested `attention`;
/// InvalidInput for an ordinal that does not exist or an unknown attention, gemm or grouped;
/// std::runtime_error for errors of the GPU's libraries.
std::unique_ptr<Device> make_gpu_device(int ordinal, const GpuOptions& options = {});

/// Creates a group with `local` of `size` ranks, on GPUs; joining ranks are numbered across processes. If
/// local < size every process creates such a group, and NCCL_COMM_ID (host:port) gives the address of the
/// first. Throws Unsupported in a build without NCCL.
std::unique_ptr<CommGroup> make_gpu_group(int size, int local);

}  // namespace precbench
