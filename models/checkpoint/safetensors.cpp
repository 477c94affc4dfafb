// Reading safetensors. Every number of a header is checked before it is used: a file may be truncated,
// corrupt, or something else under that name.
#include "models/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/description.h"
#include "kernels/base/errors.h"
#include "models/checkpoint/safetensors_format.h"

namespace precbench {

static_assert(std::endian::native == std::endian::little, "tensors are little-endian and read in place");

namespace {

using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw InvalidInput(path + ": " + reason);
}

json parse_object(const std::string& path, const std::byte* data, std::int64_t bytes, const char* what) {
  const char* text = reinterpret_cast<const char*>(data);
  json parsed;
  if (const auto instead = stands_for_file({text, static_cast<std::size_t>(bytes)})) refuse(path, *instead);
  try {
    parsed = json::parse(text, text + bytes);
  } catch (const json::exception&) {  // its message may quote the file, over several lines
    refuse(path, fmt::format("{} is not valid JSON", what));
  }
  if (!parsed.is_object()) refuse(path, fmt::format("{} is not a JSON object", what));
  if (const auto key = duplicate_key({text, static_cast<std::size_t>(bytes)}))
    refuse(path, fmt::format("{} has {} twice", what, visible(*key)));
  return parsed;
}

/// Returns a list of integers in [0, 2^63), or nullopt.
std::optional<std::vector<std::int64_t>> read_integers(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::vector<std::int64_t> integers;
  for (const json& value : *found) {
    if (!value.is_number_unsigned()) return std::nullopt;
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    integers.push_back(static_cast<std::int64_t>(number));
  }
  return integers;
}

struct HeaderTensor {
  StoredTensor tensor;
  std::int64_t begin = 0;  // in bytes after the header
  std::int64_t end = 0;
};

HeaderTensor read_tensor(const std::string& path, const std::string& name, const json& entry) {
  const std::string subject = "tensor '" + visible(name) + "' ";
  if (!entry.is_object()) refuse(path, subject + "is not described by a JSON object");
  const auto dtype = entry.find("dtype");
  const auto shape = read_integers(entry, "shape");
  const auto offsets = read_integers(entry, "data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) refuse(path, subject + "has no dtype");
  if (!shape) refuse(path, subject + "has no valid shape");
  if (!offsets || offsets->size() != 2) refuse(path, subject + "has no valid data_offsets");

  const auto dtype_name = dtype->get<std::string>();
  const SafetensorsDtype* known = find_safetensors_dtype(dtype_name);
  if (known == nullptr) refuse(path, subject + "has unknown dtype " + describe_unknown_dtype(dtype_name));
  const std::int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (begin > end)
    refuse(path, fmt::format("{}ends (byte {}) before it begins (byte {})", subject, end, begin));
  const std::optional<std::int64_t> bytes = safetensors_bytes(*shape, known->bits);
  if (!bytes || *bytes != end - begin) {
    refuse(path, fmt::format("{}takes {} bytes, which does not fit {} of shape [{}]", subject, end - begin,
                             dtype_name, visible(fmt::format("{}", fmt::join(*shape, ", ")))));
  }
  return {{name, dtype_name, *shape, nullptr, *bytes}, begin, end};
}

/// Returns "; ..." with the format that a folder without safetensors has instead and how to convert it; empty if no
/// known one is there.
std::string hint_for_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  const auto has = [&](const char* name) {
    std::error_code unused;
    return fs::exists(fs::path(folder) / name, unused);
  };
  if (has("pytorch_model.bin") || has("pytorch_model.bin.index.json"))
    return "; it has pytorch_model.bin, which tools/trained/pytorch_checkpoint.py FOLDER --out NEW converts";
  if (has("adapter_model.safetensors"))
    return "; it has LoRA adapters alone: merge them into their base model with peft (merge_and_unload)";
  std::error_code unused;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unused)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf"))
      return fmt::format("; it has {}, which tools/trained/gguf_checkpoint.py converts", visible(name));
    if (name.ends_with(".safetensors"))
      return fmt::format("; give its file {}, or an index if there are more", visible(name));
  }
  return "";
}

/// Returns what a file without a valid header length is, and the remedy; null if unknown.
std::optional<std::string> other_format(const MappedFile& file) {
  constexpr std::int64_t kStart = 1024;
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               static_cast<std::size_t>(std::min(file.size(), kStart)));
  if (start.starts_with("PK\x03\x04") || start.starts_with("\x80\x02"))
    return "a PyTorch file, not safetensors: tools/trained/pytorch_checkpoint.py FOLDER --out NEW converts its folder";
  if (start.starts_with("GGUF"))
    return "a GGUF file, not safetensors: tools/trained/gguf_checkpoint.py converts it";
  return stands_for_file(start);
}

}  // namespace

std::int64_t StoredTensor::size() const {
  std::int64_t product = 1;
  for (const std::int64_t dimension : shape) product *= dimension;
  return product;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code unused;  // a path that cannot be examined fails with a reason when it is opened
  if (fs::is_directory(path, unused)) {
    const fs::path index = fs::path(path) / "model.safetensors.index.json";
    const fs::path single = fs::path(path) / "model.safetensors";
    if (fs::exists(index, unused)) {
      add_index(index.string());
    } else if (fs::exists(single, unused)) {
      add_file(single.string());
    } else {
      refuse(path, "has neither model.safetensors.index.json nor model.safetensors" + hint_for_folder(path));
    }
  } else if (fs::path(path).extension() == ".json") {
    add_index(path);
  } else {
    add_file(path);
  }
  sort_by_name();
}

void SafetensorsFile::add_file(const std::string& path) {
  MappedFile file(path);
  if (file.size() < kLengthBytes)
    refuse(path, fmt::format("{} bytes are too few for a safetensors file", file.size()));
  std::uint64_t stated = 0;
  std::memcpy(&stated, file.data(), sizeof stated);
  if (stated > static_cast<std::uint64_t>(std::min(file.size() - kLengthBytes, kMaxSafetensorsHeader))) {
    if (const auto what = other_format(file)) refuse(path, *what);
    refuse(path, fmt::format("not a safetensors file, or truncated: a header of {} bytes in a file of {}",
                             stated, file.size()));
  }
  const auto header_bytes = static_cast<std::int64_t>(stated);
  const json header = parse_object(path, file.data() + kLengthBytes, header_bytes, "the safetensors header");

  std::vector<HeaderTensor> found;
  for (const auto& [name, entry] : header.items()) {
    if (name != kSafetensorsMetadata) {
      found.push_back(read_tensor(path, name, entry));
      continue;
    }
    if (!entry.is_object()) refuse(path, "__metadata__ is not a JSON object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) refuse(path, "__metadata__ '" + visible(key) + "' is not a string");
      metadata_.emplace(key, value.get<std::string>());
    }
  }

  // The tensors must tile the data, so that none overlap, none lie outside, and no byte is unaccounted for.
  std::sort(found.begin(), found.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const std::int64_t data_bytes = file.size() - kLengthBytes - header_bytes;
  std::int64_t covered = 0;
  for (HeaderTensor& next : found) {
    if (next.begin != covered) {
      refuse(path,
             fmt::format("tensor '{}' begins at byte {} of the data, which {} the tensor before it (end {})",
                         visible(next.tensor.name), next.begin,
                         next.begin < covered ? "overlaps" : "leaves a gap after", covered));
    }
    covered = next.end;
    next.tensor.data = file.data() + kLengthBytes + header_bytes + next.begin;
  }
  if (covered != data_bytes) {
    refuse(path, fmt::format("{}: the header describes {} bytes of tensors, the file holds {}",
                             covered > data_bytes ? "truncated" : "corrupt", covered, data_bytes));
  }
  for (HeaderTensor& next : found) tensors_.push_back(std::move(next.tensor));
  files_.push_back(std::move(file));
}

void SafetensorsFile::add_index(const std::string& path) {
  namespace fs = std::filesystem;
  const MappedFile file(path);
  const json index = parse_object(path, file.data(), file.size(), "the index");
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    refuse(path, "has no weight_map, so it is not a Hugging Face index of safetensors shards");
  }

  std::map<std::string, std::set<std::string>> names_of_shard;
  for (const auto& [name, shard] : weight_map->items()) {
    // A shard lies in the folder of its index. Anything but a plain file name could lead out of the
    // checkpoint.
    const std::string file_name = shard.is_string() ? shard.get<std::string>() : "";
    if (file_name.empty() || file_name == ".." || fs::path(file_name).filename() != file_name) {
      refuse(path, "gives no plain file name as the shard of tensor '" + visible(name) + "'");
    }
    names_of_shard[file_name].insert(name);
  }

  std::vector<StoredTensor> mapped;
  for (auto& [file_name, names] : names_of_shard) {
    const fs::path shard = fs::path(path).parent_path() / file_name;
    std::error_code unused;
    if (!fs::exists(shard, unused)) refuse(path, "its shard " + visible(file_name) + " is missing");
    tensors_.clear();
    add_file(shard.string());
    for (StoredTensor& tensor : tensors_) {
      if (names.erase(tensor.name) == 1) mapped.push_back(std::move(tensor));
    }
    if (!names.empty()) {
      refuse(path, fmt::format("places tensor '{}' in {}, which does not hold it", visible(*names.begin()),
                               visible(file_name)));
    }
  }
  tensors_ = std::move(mapped);
}

void SafetensorsFile::sort_by_name() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto at_or_after =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const StoredTensor& a, const std::string& b) { return a.name < b; });
  return at_or_after != tensors_.end() && at_or_after->name == name ? &*at_or_after : nullptr;
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  if (const StoredTensor* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const StoredTensor& tensor : tensors_) names.push_back(tensor.name);
  const std::string near = nearest(name, names);
  refuse(path_, "has no tensor '" + visible(name) + "'" +
                    (near.empty() ? "" : "; the nearest is '" + visible(near) + "'"));
}

void SafetensorsFile::forget(const std::byte* data, std::int64_t bytes) const {
  for (const MappedFile& file : files_)
    if (const std::int64_t begin = data - file.data(); begin >= 0 && begin < file.size())
      file.forget(begin, begin + bytes);
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31;
  const std::uint32_t mantissa = bits & 1023;
  if (exponent == 0) {
    // Subnormal: mantissa * 2^-24, which a float holds exactly.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide_exponent << 23 | mantissa << 13);
}

void check_dtype(const StoredTensor& tensor) {
  if (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16")
    throw InvalidInput(
        fmt::format("tensor '{}' is {}; weights must be F32, BF16, F16 or, with scales, F8_E4M3 or F8_E5M2",
                    visible(tensor.name), tensor.dtype));
}

void copy_to_f32(float* destination, const StoredTensor& tensor) {
  check_dtype(tensor);
  const std::int64_t count = tensor.size();
  if (tensor.dtype == "F32") {
    if (count > 0) std::memcpy(destination, tensor.data, static_cast<std::size_t>(tensor.bytes));
    return;
  }
  const bool bf16 = tensor.dtype == "BF16";
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, tensor.data + 2 * i, sizeof bits);
    destination[i] =
        bf16 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16) : half_to_float(bits);
  }
}

}  // namespace precbench
