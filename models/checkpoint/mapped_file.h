// A whole file mapped read-only into memory, so that token sources and checkpoints are read without a copy in
// RAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace precbench {

class MappedFile {
 public:
  /// Maps the regular file `path`. Throws InvalidInput if it cannot be opened or is not a regular file,
  /// OutOfMemory if the kernel has no mapping left. The file must not shrink while it is mapped.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }  ///< page-aligned; null if the file is empty
  std::int64_t size() const { return size_; }      ///< bytes

  /// Releases the pages that lie wholly inside bytes [begin, end) from this process; the next read maps them
  /// again. After a scan of a large file this reduces resident memory to what training touches.
  void forget(std::int64_t begin, std::int64_t end) const;

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace precbench
