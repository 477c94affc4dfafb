// Writes at arbitrary file offsets (Linux). See safetensors_parts.h.
#include "models/checkpoint/safetensors_parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"

namespace precbench {

PartFile::PartFile(const std::string& path, int flags)
    : path_(path), descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail();
}

PartFile::PartFile(const std::string& path) : PartFile(path, O_WRONLY) {}

PartFile::~PartFile() { ::close(descriptor_); }

void PartFile::fail() const {
  throw InvalidInput(fmt::format("{}: cannot be written ({})", path_, error_text(errno)));
}

void PartFile::make(const std::string& path, const SafetensorsLayout& layout) {
  const PartFile file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (::fallocate(file.descriptor_, 0, 0, layout.bytes) != 0) {
    if (errno != EOPNOTSUPP && errno != ENOSYS) file.fail();
    if (::ftruncate(file.descriptor_, layout.bytes) != 0) file.fail();
  }
  file.write(0, reinterpret_cast<const std::byte*>(layout.head.data()),
             static_cast<std::int64_t>(layout.head.size()));
}

void PartFile::write(std::int64_t offset, const std::byte* data, std::int64_t bytes) const {
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t wrote =
        ::pwrite(descriptor_, data + done, static_cast<std::size_t>(bytes - done), offset + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail();
    done += wrote;
  }
}

void PartFile::start_writeback(std::int64_t offset, std::int64_t bytes) const {
  // Otherwise the kernel caches the file until sync(). Only a hint: errors appear at sync().
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void PartFile::sync() const {
  if (::fsync(descriptor_) != 0) fail();
}

}  // namespace precbench
