// Checkpoints in the safetensors format (github.com/huggingface/safetensors): weights in and out, so that a
// step can be repeated elsewhere on the same weights. A file is 8 bytes of header length (little-endian), a
// JSON header that gives dtype, shape and byte range of every tensor, and the tensors' bytes, row-major,
// without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/checkpoint/mapped_file.h"

namespace precbench {

/// A tensor inside an open SafetensorsFile, valid as long as that lives.
struct StoredTensor {
  std::string name;
  std::string dtype;                ///< as the format spells it: "F32", "BF16", "F16", "I64", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  const std::byte* data = nullptr;  ///< little-endian, row-major; need not be aligned for its dtype
  std::int64_t bytes = 0;

  std::int64_t size() const;  ///< elements: the product of the shape
};

/// An open checkpoint: read-only, memory-mapped. All errors are InvalidInput with one line that names the
/// file.
class SafetensorsFile {
 public:
  /// `path` is a .safetensors file, a Hugging Face index (*.json, whose weight_map names the shards beside
  /// it), or a directory with model.safetensors.index.json or model.safetensors. Everything in the headers is
  /// checked here.
  explicit SafetensorsFile(const std::string& path);

  /// Sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// The tensor of that name, or null.
  const StoredTensor* find(const std::string& name) const;
  /// The tensor of that name; InvalidInput names the missing one and the nearest there is.
  const StoredTensor& at(const std::string& name) const;
  /// Takes bytes of a tensor out of this process, as MappedFile::forget: of one that is larger than memory, what was
  /// read need not stay.
  void forget(const std::byte* data, std::int64_t bytes) const;
  /// The __metadata__ of the file; for shards, what they say together.
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

/// The exact value of an IEEE binary16; NaN keeps its sign and payload.
float half_to_float(std::uint16_t bits);

/// Throws InvalidInput that names the tensor where copy_to_f32 cannot take its dtype.
void check_dtype(const StoredTensor& tensor);

/// destination[tensor.size()] = the values of an F32, BF16 or F16 tensor, exactly; InvalidInput for other
/// dtypes.
void copy_to_f32(float* destination, const StoredTensor& tensor);

/// A tensor to be written.
struct NamedTensor {
  std::string name;
  std::string dtype;  ///< as in StoredTensor
  std::vector<std::int64_t> shape;
  const void* data = nullptr;  ///< little-endian, row-major
};

/// Writes a .safetensors file, byte for byte as the reference implementation does (tensors in order of
/// descending alignment, then name). It is written beside `path` under a temporary name and renamed when
/// complete, so that no reader ever sees half a file. InvalidInput for a tensor that cannot be stored and for
/// a failing disk.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace precbench
