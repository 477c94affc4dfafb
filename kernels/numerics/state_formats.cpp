// Names of optimizer-state formats. See state_formats.h.
#include "kernels/numerics/state_formats.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/base/enum_names.h"

namespace precbench {
namespace {

constexpr EnumNames<StateFormat, kStateFormats> kStateFormatNames{{"fp32", "bf16", "fp16", "e4m3", "coat"}};

}  // namespace

const char* name_of(StateFormat format) { return kStateFormatNames.of(format); }

StateFormat state_format_named(const std::string& name) {
  if (const auto found = kStateFormatNames.find(name)) return *found;
  throw std::invalid_argument("no format of state has the name " + name);
}

CoatScale coat_encode_group(std::uint8_t* codes, const float* values, std::int64_t n) {
  float largest = 0, smallest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(values[i]);
    largest = std::max(largest, magnitude);  // false for NaN
    if (magnitude > 0 && (smallest == 0 || magnitude < smallest)) smallest = magnitude;
  }
  const CoatScale scale = coat_scale(largest, smallest);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = coat_encode(values[i], scale);
  return scale;
}

}  // namespace precbench
