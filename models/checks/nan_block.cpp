// NaN by copy-on-write pages or by upload. See nan_block.h.
#include "models/checks/nan_block.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace precbench::checks {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 20;

std::vector<std::byte> nan_chunk() { return std::vector<std::byte>(kChunk, std::byte{0xFF}); }

/// Returns a chunk of NaN as a file in memory, which stays open; negative where there is none.
int nan_file() {
  const int file = memfd_create("nan", MFD_CLOEXEC);
  return file >= 0 && write(file, nan_chunk().data(), kChunk) == kChunk ? file : -1;
}

/// Replaces the pages of `data` by those of the file, of which a page is copied when it is first written. The CPU device's blocks
/// share no page with other memory. Returns false if the system cannot, as where pages are so large that `data` begins inside one.
bool map_nan(std::byte* data, std::int64_t bytes) {
  static const int file = nan_file();
  for (std::int64_t done = 0; done < bytes; done += kChunk)
    if (mmap(data + done, static_cast<std::size_t>(std::min(kChunk, bytes - done)), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
      return false;
  return true;
}

}  // namespace

NanBlock::NanBlock(Device& device, std::int64_t bytes) : DeviceBlock(device, bytes) {
  auto* const start = static_cast<std::byte*>(data());
  if (device.name() == "cpu" && map_nan(start, bytes)) return;
  const std::vector<std::byte> nan = nan_chunk();
  for (std::int64_t done = 0; done < bytes; done += kChunk)
    device.upload({start + done, DType::e4m3, 1, std::min(kChunk, bytes - done)}, nan.data());
  device.synchronize();
}

}  // namespace precbench::checks
