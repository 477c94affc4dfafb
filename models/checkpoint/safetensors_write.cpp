// Writing safetensors.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/safetensors_format.h"
#include "models/checkpoint/safetensors_parts.h"

namespace precbench {
namespace {

struct Placed {
  const NamedTensor* tensor;
  const SafetensorsDtype* dtype;
  std::int64_t bytes;
};

std::vector<Placed> place(const std::vector<NamedTensor>& tensors) {
  std::vector<Placed> placed;
  for (const NamedTensor& tensor : tensors) {
    const std::string subject = "cannot store tensor '" + visible(tensor.name) + "': ";
    if (tensor.name == kSafetensorsMetadata) throw InvalidInput(subject + "the format reserves this name");
    const SafetensorsDtype* dtype = find_safetensors_dtype(tensor.dtype);
    if (dtype == nullptr)
      throw InvalidInput(subject + "unknown dtype " + describe_unknown_dtype(tensor.dtype));
    const std::optional<std::int64_t> bytes = safetensors_bytes(tensor.shape, dtype->bits);
    if (!bytes)
      throw InvalidInput(fmt::format("{}impossible shape [{}]", subject, fmt::join(tensor.shape, ", ")));
    placed.push_back({&tensor, dtype, *bytes});
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.dtype, a.tensor->name) < std::tie(b.dtype, b.tensor->name);  // dtypes lie in one table
  });
  std::vector<std::string> names;
  for (const Placed& next : placed) names.push_back(next.tensor->name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw InvalidInput("cannot store two tensors named '" + visible(*twice) + "'");
  return placed;
}

/// Returns the header with its length in front.
std::string make_head(const std::vector<Placed>& placed, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kSafetensorsMetadata] = metadata;
  std::int64_t offset = 0;
  for (const Placed& next : placed) {
    nlohmann::ordered_json entry;
    entry["dtype"] = next.tensor->dtype;
    entry["shape"] = next.tensor->shape;
    entry["data_offsets"] = {offset, offset + next.bytes};
    header[next.tensor->name] = std::move(entry);
    offset += next.bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    throw InvalidInput("cannot store tensors: a name or metadata value is not valid UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data starts 8-byte aligned
  const std::uint64_t bytes = text.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + text;
}

/// A file under a temporary name, removed unless committed.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path)
      : path_(path),
        temporary_(fmt::format("{}.{}.tmp", path, ::getpid())),
        file_(std::fopen(temporary_.c_str(), "wb")) {
    if (file_ == nullptr) fail();
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (!committed_) std::remove(temporary_.c_str());
  }

  void write(const void* data, std::int64_t bytes) {
    const auto count = static_cast<std::size_t>(bytes);
    if (count > 0 && std::fwrite(data, 1, count, file_) != count) fail();
  }

  void commit() {
    if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail();
    const int closed = std::fclose(file_);
    file_ = nullptr;
    if (closed != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    committed_ = true;
  }

 private:
  [[noreturn]] void fail() const {
    throw InvalidInput(fmt::format("{}: cannot be written ({})", path_, error_text(errno)));
  }

  std::string path_;
  std::string temporary_;
  std::FILE* file_;
  bool committed_ = false;
};

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<Placed> placed = place(tensors);
  const std::string head = make_head(placed, metadata);
  PendingFile file(path);
  file.write(head.data(), static_cast<std::int64_t>(head.size()));
  for (const Placed& next : placed) file.write(next.tensor->data, next.bytes);
  file.commit();
}

SafetensorsLayout lay_out_safetensors(const std::vector<NamedTensor>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  const std::vector<Placed> placed = place(tensors);
  SafetensorsLayout layout{.head = make_head(placed, metadata), .offsets = {}, .bytes = 0};
  layout.bytes = static_cast<std::int64_t>(layout.head.size());
  for (const Placed& next : placed) {
    layout.offsets[next.tensor->name] = layout.bytes;
    layout.bytes += next.bytes;
  }
  return layout;
}

}  // namespace precbench
