// A .safetensors file that several writers fill concurrently, each its own parts, for tensors that no single
// writer holds whole. The result equals that of write_safetensors byte for byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"

namespace precbench {

/// Positions of the contents of such a file, in bytes.
struct SafetensorsLayout {
  std::string head;                             ///< header length and header
  std::map<std::string, std::int64_t> offsets;  ///< first byte of each tensor in the file
  std::int64_t bytes = 0;                       ///< size of the whole file
};

/// Returns the layout; only names, dtypes and shapes of the tensors are used. Throws InvalidInput like
/// write_safetensors.
SafetensorsLayout lay_out_safetensors(const std::vector<NamedTensor>& tensors,
                                      const std::map<std::string, std::string>& metadata = {});

/// A file with writes at arbitrary offsets. Each writer opens it separately. All errors are InvalidInput with
/// one line that names the file.
class PartFile {
 public:
  /// Creates the file at its full length, with its header. Reserves disk space if the file system can, so
  /// that a full disk is reported here.
  static void make(const std::string& path, const SafetensorsLayout& layout);

  /// Opens a file created by make().
  explicit PartFile(const std::string& path);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  void write(std::int64_t offset, const std::byte* data, std::int64_t bytes) const;
  /// Starts writeback of what was written in a range, so that it overlaps the caller's work.
  void start_writeback(std::int64_t offset, std::int64_t bytes) const;
  /// Waits until the whole file is on disk.
  void sync() const;

 private:
  PartFile(const std::string& path, int flags);
  [[noreturn]] void fail() const;

  std::string path_;
  int descriptor_;
};

}  // namespace precbench
