// The CUDA device itself: finding GPUs, memory, the stream, graph capture, errors. The ops are in files of
// their own.
#include "kernels/cuda/cuda_device.h"

#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "kernels/base/errors.h"
#include "kernels/base/slow_notice.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/grouped_plans.h"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/cuda/hopper/early_start.h"
#include "kernels/cuda/hopper/tensor_map.h"
#include "kernels/gpu/device_info.h"
#include "kernels/gpu/nvml.h"

#ifdef PRECBENCH_HAS_CUDNN
#include <cudnn.h>
#endif
#ifdef PRECBENCH_HAS_NCCL
#include <nccl.h>
#endif

namespace precbench {
namespace {

constexpr int kMinimumComputeCapability = 80;  // BF16 tensor cores
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// CUDA ordinals of the GPUs that are new enough, or why there is none.
struct UsableGpus {
  std::vector<int> ordinals;
  std::string reason;
  bool driver = false;
};

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// Words for calls that create a CUDA context, which wait for an MPS daemon for any time.
std::optional<std::string> waits_for_cuda() {
  return fmt::format(
      "waiting for the GPU: CUDA has not answered for {} s; if an MPS daemon runs, is CUDA_VISIBLE_DEVICES one of its "
      "GPUs?",
      kSlowAfter.count());
}

UsableGpus look_for_gpus() {
  const SlowNotice notice(waits_for_cuda);
  UsableGpus usable;
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    usable.reason = "no NVIDIA driver is loaded on this machine";
    return usable;
  }
  usable.driver = true;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();  // an error here must not surface in a later call
  if (status == cudaErrorInsufficientDriver)
    usable.reason =
        fmt::format("the NVIDIA driver is too old: it supports CUDA {}, this build needs {}; update it",
                    cuda_version(driver), cuda_version(CUDART_VERSION));
  else if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    usable.reason =
        "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES may hide it, or name one that an MPS daemon lacks)";
  else if (status != cudaSuccess)
    usable.reason = fmt::format(
        "CUDA does not start: {} (with an MPS daemon, CUDA_VISIBLE_DEVICES must be among its GPUs)",
        cudaGetErrorString(status));
  if (!usable.reason.empty()) return usable;

  std::string too_old;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) continue;
    if (properties.major * 10 + properties.minor >= kMinimumComputeCapability)
      usable.ordinals.push_back(ordinal);
    else
      too_old = fmt::format("{} has compute capability {}.{}, 8.0 or newer is needed", properties.name,
                            properties.major, properties.minor);
  }
  if (usable.ordinals.empty())
    usable.reason = too_old.empty() ? "CUDA cannot read the properties of any GPU" : too_old;
  return usable;
}

/// Asks once: a failed start of CUDA may take long, and each further attempt as long again.
const UsableGpus& usable_gpus() {
  static const UsableGpus usable = look_for_gpus();
  return usable;
}

/// Returns CUDA's ordinal of the program's `ordinal`-th GPU.
int cuda_ordinal(int ordinal) {
  const UsableGpus& usable = usable_gpus();
  if (usable.ordinals.empty()) throw Unsupported(usable.reason);
  if (ordinal < 0 || ordinal >= static_cast<int>(usable.ordinals.size()))
    throw InvalidInput(
        fmt::format("there is no GPU {}: this machine has {} usable", ordinal, usable.ordinals.size()));
  return usable.ordinals[ordinal];
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string library_version(std::size_t version, std::size_t major_unit) {
  return fmt::format("{}.{}.{}", version / major_unit, version % major_unit / 100, version % 100);
}

}  // namespace

void throw_library_error(const char* library, int code, const char* text, const char* call,
                         const char* operation) {
  std::string_view op = operation;
  if (op.starts_with("do_")) op.remove_prefix(3);
  throw std::runtime_error(fmt::format("{}: {} ({} error {}) in {}", op, text, library, code, call));
}

void throw_cuda_error(cudaError_t status, const char* call, const char* operation) {
  cudaGetLastError();  // already handled: the next call starts clean unless the context is lost
  if (status == cudaErrorMemoryAllocation)
    throw OutOfMemory(fmt::format("{}: the GPU is out of memory in {}", operation, call), 0);
  throw_library_error("CUDA", status, cudaGetErrorString(status), call, operation);
}

VisibleGpus find_gpus() {
  const UsableGpus& usable = usable_gpus();
  return {static_cast<int>(usable.ordinals.size()), usable.reason, "cuda", usable.driver};
}

std::string compiled_architectures() { return PRECBENCH_GPU_ARCHITECTURES; }

GpuProperties gpu_properties(int ordinal) {
  const int device = cuda_ordinal(ordinal);
  cudaDeviceProp prop;
  PRECBENCH_CHECK(cudaGetDeviceProperties(&prop, device));
  GpuProperties gpu;
  gpu.ordinal = ordinal;
  gpu.name = prop.name;
  gpu.compute_capability = prop.major * 10 + prop.minor;
  gpu.sm_count = prop.multiProcessorCount;
  gpu.memory_bytes = static_cast<std::int64_t>(prop.totalGlobalMem);
  gpu.uuid = uuid_text(prop.uuid);
  gpu.pci_bus_id = fmt::format("{:08x}:{:02x}:{:02x}.0", prop.pciDomainID, prop.pciBusID, prop.pciDeviceID);
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) gpu.cuda_runtime = cuda_version(version);
  if (cudaDriverGetVersion(&version) == cudaSuccess) gpu.cuda_driver = cuda_version(version);
  gpu.cublaslt = library_version(cublasLtGetVersion(), 10000);
#ifdef PRECBENCH_HAS_CUDNN
  gpu.cudnn = library_version(cudnnGetVersion(), 10000);
#endif
#ifdef PRECBENCH_HAS_NCCL
  if (ncclGetVersion(&version) == ncclSuccess) gpu.nccl = library_version(version, 10000);
#endif
  gpu.description = fmt::format("{}, compute capability {}.{}, {:.0f} GiB, cuBLASLt {}", gpu.name, prop.major,
                                prop.minor, static_cast<double>(gpu.memory_bytes) / kGiB, gpu.cublaslt);
  if (const auto nvml = NvmlGpu::open(gpu.pci_bus_id)) {
    gpu.driver = nvml->driver_version();
    gpu.ecc = nvml->ecc_mode();
    gpu.power_limit_w = nvml->power_limit_w();
  }
  return gpu;
}

GpuMemory gpu_memory(int ordinal) {
  const SlowNotice notice(waits_for_cuda);
  int previous = 0;
  PRECBENCH_CHECK(cudaGetDevice(&previous));
  PRECBENCH_CHECK(cudaSetDevice(cuda_ordinal(ordinal)));
  std::size_t free = 0, total = 0;
  PRECBENCH_CHECK(cudaMemGetInfo(&free, &total));
  PRECBENCH_CHECK(cudaSetDevice(previous));
  return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

std::unique_ptr<Device> make_gpu_device(int ordinal, const GpuOptions& options) {
  auto device = std::make_unique<CudaDevice>(ordinal);
  device->set_autotune(options.autotune);
  device->set_deterministic(options.deterministic);
  device->set_attention(options.attention);
  device->set_gemm(options.gemm);
  device->set_grouped(options.grouped);
  device->set_demoted(options.demoted);
  return device;
}

CudaDevice::CudaDevice(int ordinal)
    : properties_(gpu_properties(ordinal)), cuda_ordinal_(cuda_ordinal(ordinal)) {
  const SlowNotice notice(waits_for_cuda);
  PRECBENCH_CHECK(cudaSetDevice(cuda_ordinal_));
  PRECBENCH_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  plans_ = std::make_unique<MatmulPlans>(*this);
  grouped_plans_ = std::make_unique<GroupedPlans>(*this, plans_->handle());
}

CudaDevice::~CudaDevice() {
  // A destructor cannot report errors; after a lost context all of these fail harmlessly.
  cudaSetDevice(cuda_ordinal_);
  cudaStreamSynchronize(stream_);
  attention_.reset();
  grouped_plans_.reset();
  plans_.reset();
  cudaFree(scratch_);
  for (void* block : retired_) cudaFree(block);
  cudaStreamDestroy(stream_);
}

void* CudaDevice::allocate(std::int64_t bytes) {
  void* block = nullptr;
  const cudaError_t status = cudaMalloc(&block, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    PRECBENCH_CHECK(cudaMemGetInfo(&free, &total));
    throw OutOfMemory(fmt::format("{:.2f} GiB do not fit: {:.2f} of {:.2f} GiB are free on {}", bytes / kGiB,
                                  free / kGiB, total / kGiB, properties_.name),
                      bytes);
  }
  check(status, "cudaMalloc", "allocate");
  return block;
}

void CudaDevice::deallocate(void* block) {
  // Runs during unwinding too, when a lost context makes it fail: that error has already been reported.
  cudaFree(block);
  cudaGetLastError();
}

void CudaDevice::upload(const Tensor& dst, const void* src) {
  if (capturing_)
    throw std::logic_error("upload inside a captured step: the graph would keep a host address");
  // Pageable memory has been copied to a staging buffer when this returns, so the caller may reuse it.
  PRECBENCH_CHECK(cudaMemcpyAsync(dst.data, src, dst.bytes(), cudaMemcpyHostToDevice, stream_));
}

void CudaDevice::download(void* dst, const Tensor& src) {
  if (capturing_)
    throw std::logic_error("download inside a captured step: the graph would keep a host address");
  const cudaError_t status = cudaMemcpyAsync(dst, src.data, src.bytes(), cudaMemcpyDeviceToHost, stream_);
  check(status, "download", last_op_);
  synchronize();
}

void CudaDevice::synchronize() {
  if (capturing_) throw std::logic_error("synchronize inside a captured step");
  check(cudaStreamSynchronize(stream_),
        "an op that ended with this one or before it (CUDA_LAUNCH_BLOCKING=1 tells)", last_op_);
}

std::optional<std::string> CudaDevice::fallback_reason() const {
  return hopper_fallback_reason(compute_capability(), hopper::has_tensor_maps());
}

std::int64_t CudaDevice::workspace_bytes() const {
  return static_cast<std::int64_t>(scratch_bytes_ + retired_bytes_) + rope_table_bytes_;
}

void* CudaDevice::scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  if (capturing_)
    throw std::logic_error(fmt::format(
        "after {}: an op wants {} bytes of scratch in a captured step, {} at most were used before", last_op_,
        bytes, scratch_bytes_));
  if (captured_) {
    retired_.push_back(scratch_);
    retired_bytes_ += scratch_bytes_;
  } else {
    PRECBENCH_CHECK(cudaStreamSynchronize(stream_));
    PRECBENCH_CHECK(cudaFree(scratch_));
  }
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  scratch_ = allocate(static_cast<std::int64_t>(bytes));
  scratch_bytes_ = bytes;
  return scratch_;
}

void CudaDevice::launched(const char* op) {
  last_op_ = op;
  check(cudaGetLastError(), "kernel launch", op);
}

void CudaDevice::begin_capture() {
  // Thread-local: other ranks of this process may allocate during the capture.
  PRECBENCH_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}

CudaDevice::Captured CudaDevice::end_capture(KernelStart start) {
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "the capture of a step", last_op_);
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> owner(graph, cudaGraphDestroy);
  const int early = start == KernelStart::early ? hopper::start_early(graph) : 0;
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate", "captured step");
  PRECBENCH_CHECK(cudaGraphUpload(executable, stream_));
  captured_ = true;
  return {executable, early};
}

void CudaDevice::abandon_capture() {
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
}

GemmSupport CudaDevice::support(const GemmRecipe& gemm, GemmRole role) const {
  return plans_->support(gemm, role);
}

void CudaDevice::set_autotune(bool on) {
  autotune_ = on;
  plans_->set_autotune(on);
}

}  // namespace precbench
