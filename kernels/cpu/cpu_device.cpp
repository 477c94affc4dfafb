// Memory and identity of the CPU device.
#include "kernels/cpu/cpu_device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <map>

#include "kernels/base/errors.h"
#include "kernels/device/devices.h"

namespace precbench {
namespace {

// A block's first page holds its length, which munmap needs.
constexpr std::int64_t kHeader = 4096;

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) { return std::make_unique<CpuDevice>(threads); }

CpuDevice::CpuDevice(int threads) : threads_(threads) {}

GemmSupport CpuDevice::support(const GemmRecipe& gemm, GemmRole) const {
  if (!gemm.a.quantized() && !gemm.b.quantized()) return {};
  if (gemm.a.dtype == DType::e2m1)
    return {Execution::emulated, "a CPU has no FP4 units: operands are dequantized to FP32"};
  if (gemm.a.grid || gemm.b.grid)
    return {Execution::emulated, "no processor multiplies a grid: operands are dequantized to FP32"};
  return {Execution::emulated, "a CPU has no FP8 units: operands are dequantized to FP32"};
}

void* CpuDevice::allocate(std::int64_t bytes) {
  // Pages become resident when first written: resident memory is the arena's peak, not its capacity.
  void* block = mmap(nullptr, bytes + kHeader, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED)
    throw OutOfMemory(fmt::format("the host cannot give {:.1f} MiB", bytes / 1048576.0), bytes);
  *static_cast<std::int64_t*>(block) = bytes + kHeader;
  return static_cast<std::byte*>(block) + kHeader;
}

void CpuDevice::deallocate(void* block) {
  if (!block) return;
  void* start = static_cast<std::byte*>(block) - kHeader;
  munmap(start, *static_cast<std::int64_t*>(start));
}

void CpuDevice::upload(const Tensor& dst, const void* src) { std::memcpy(dst.data, src, dst.bytes()); }

void CpuDevice::download(void* dst, const Tensor& src) { std::memcpy(dst, src.data, src.bytes()); }

}  // namespace precbench
