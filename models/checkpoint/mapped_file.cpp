// Memory-mapped files on POSIX.
#include "models/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Closes its descriptor at the end of the scope; the mapping remains valid.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void fail(const std::string& path, int error) {
  throw InvalidInput(fmt::format("{}: cannot be read ({})", path, error_text(error)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(path, errno);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(path, errno);
  if (S_ISDIR(status.st_mode)) fail(path, EISDIR);
  if (!S_ISREG(status.st_mode)) throw InvalidInput(path + ": is not a regular file");
  if (status.st_size == 0) return;  // mmap refuses an empty range

  void* address =
      ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) {
    if (errno != ENOMEM) fail(path, errno);
    throw OutOfMemory(path + ": no room to map it; join many small files into one, or raise vm.max_map_count",
                      status.st_size);
  }
  data_ = static_cast<std::byte*>(address);
  size_ = status.st_size;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

void MappedFile::forget(std::int64_t begin, std::int64_t end) const {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t first = (begin + page - 1) / page * page;
  // The last page of the file is whole even when the file ends inside it.
  const std::int64_t last = end >= size_ ? (size_ + page - 1) / page * page : end / page * page;
  // Best effort: if the kernel declines, the pages only stay resident.
  if (first < last) ::madvise(data_ + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
}

}  // namespace precbench
