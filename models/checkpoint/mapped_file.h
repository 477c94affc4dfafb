// A whole file mapped read-only into memory: how token sources and checkpoints are read without a copy in
// RAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace precbench {

class MappedFile {
 public:
  /// Maps the regular file `path`. InvalidInput if it cannot be opened or is no regular file, OutOfMemory if
  /// the kernel has no mapping left. The file must not shrink while it is mapped.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }  ///< page-aligned; null when the file is empty
  std::int64_t size() const { return size_; }      ///< bytes

  /// Takes the pages that lie wholly inside bytes [begin, end) out of this process; the next read maps them
  /// again. After a scan of a large file it keeps the resident memory at what training touches.
  void forget(std::int64_t begin, std::int64_t end) const;

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace precbench
