// Checkpoints in the safetensors format (github.com/huggingface/safetensors): reading and writing weights, so
// that a step can be repeated elsewhere with the same weights. A file is 8 bytes of header length
// (little-endian), a JSON header that gives dtype, shape and byte range of every tensor, and the tensors'
// bytes, row-major, without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/checkpoint/mapped_file.h"

namespace precbench {

/// A tensor inside an open SafetensorsFile, valid as long as the file object.
struct StoredTensor {
  std::string name;
  std::string dtype;                ///< as the format spells it: "F32", "BF16", "F16", "I64", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  const std::byte* data = nullptr;  ///< little-endian, row-major; need not be aligned for its dtype
  std::int64_t bytes = 0;

  std::int64_t size() const;  ///< elements: the product of the shape
};

/// An open checkpoint: read-only and memory-mapped. All errors are InvalidInput with one line that names the
/// file.
class SafetensorsFile {
 public:
  /// `path` is a .safetensors file, a Hugging Face index (*.json, whose weight_map names the shards in the
  /// same folder), or a directory with model.safetensors.index.json or model.safetensors. Checks everything
  /// in the headers.
  explicit SafetensorsFile(const std::string& path);

  /// All tensors, sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Returns the tensor with this name, or null.
  const StoredTensor* find(const std::string& name) const;
  /// Returns the tensor with this name. Throws InvalidInput that names the missing tensor and the nearest
  /// existing one.
  const StoredTensor& at(const std::string& name) const;
  /// Releases bytes of a tensor from this process (MappedFile::forget), so that tensors larger than memory
  /// can be read.
  void forget(const std::byte* data, std::int64_t bytes) const;
  /// The __metadata__ of the file; for shards, that of all of them merged.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void add_file(const std::string& path);
  void add_index(const std::string& path);
  void sort_by_name();

  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Returns the exact value of an IEEE binary16; NaN keeps its sign and payload.
float half_to_float(std::uint16_t bits);

/// Throws InvalidInput that names the tensor if copy_to_f32 does not support its dtype.
void check_dtype(const StoredTensor& tensor);

/// Writes the values of an F32, BF16 or F16 tensor to destination[tensor.size()], exactly. Throws
/// InvalidInput for other dtypes.
void copy_to_f32(float* destination, const StoredTensor& tensor);

/// A tensor to write.
struct NamedTensor {
  std::string name;
  std::string dtype;  ///< as in StoredTensor
  std::vector<std::int64_t> shape;
  const void* data = nullptr;  ///< little-endian, row-major
};

/// Writes a .safetensors file, byte for byte like the reference implementation (tensors in order of
/// descending alignment, then name). Writes to a temporary name beside `path` and renames it when complete,
/// so that readers never see a partial file. Throws InvalidInput for a tensor that cannot be stored and for a
/// failing disk.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace precbench
