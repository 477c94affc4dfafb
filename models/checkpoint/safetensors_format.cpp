// Dtypes and sizes of the safetensors format.
#include "models/checkpoint/safetensors_format.h"

#include <fmt/format.h>

#include "kernels/base/errors.h"

namespace precbench {

const SafetensorsDtype* find_safetensors_dtype(const std::string& name) {
  for (const SafetensorsDtype& dtype : kSafetensorsDtypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

std::string describe_unknown_dtype(const std::string& word) {
  std::vector<std::string> names;
  for (const SafetensorsDtype& dtype : kSafetensorsDtypes) names.emplace_back(dtype.name);
  const std::string near = nearest(word, names);
  const std::string hint = near.empty() ? "" : fmt::format(" (did you mean {}?)", near);
  return fmt::format("'{}'{}", visible(word), hint);
}

std::optional<std::int64_t> safetensors_bytes(const std::vector<std::int64_t>& shape, int bits) {
  std::int64_t total = bits;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(total, dimension, &total)) return std::nullopt;
  }
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

std::string visible(std::string text) {
  constexpr std::size_t kShown = 200;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace precbench
