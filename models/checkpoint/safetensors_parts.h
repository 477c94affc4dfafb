// A .safetensors file that several writers fill in at once, each its own parts: for tensors of which no one holds the
// whole. The result is byte for byte what write_safetensors would have written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"

namespace precbench {

/// Where everything stands in such a file.
struct SafetensorsLayout {
  std::string head;                             ///< the header and its length
  std::map<std::string, std::int64_t> offsets;  ///< of a tensor's first byte in the file
  std::int64_t bytes = 0;                       ///< of the whole file
};

/// Of the tensors only names, dtypes and shapes count. Throws InvalidInput as write_safetensors does.
SafetensorsLayout lay_out_safetensors(const std::vector<NamedTensor>& tensors,
                                      const std::map<std::string, std::string>& metadata = {});

/// A file that is written at any place. Each writer opens it for itself. All errors are InvalidInput with one line
/// that names the file.
class PartFile {
 public:
  /// Makes the file at its full length, with its head. Where the file system can reserve room it is reserved, so that
  /// a full disk shows here.
  static void make(const std::string& path, const SafetensorsLayout& layout);

  /// Opens one that was made.
  explicit PartFile(const std::string& path);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  /// The disk begins to write at once, beside what the caller does next.
  void write(std::int64_t offset, const std::byte* data, std::int64_t bytes) const;
  /// Waits until all of the file is on the disk.
  void sync() const;

 private:
  PartFile(const std::string& path, int flags);
  [[noreturn]] void fail() const;

  std::string path_;
  int descriptor_;
};

}  // namespace precbench
