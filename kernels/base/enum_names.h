// Names of an enum's values in one table, for conversion in both directions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace precbench {

/// Names in the order of the values, from 0 without gaps: `EnumNames<Side, 2>{{"left", "right"}}`.
template <class Enum, std::size_t kCount>
struct EnumNames {
  const char* names[kCount];

  /// Returns "?" for an invalid value.
  constexpr const char* of(Enum value) const {
    const auto place = static_cast<std::size_t>(value);
    return place < kCount ? names[place] : "?";
  }
  constexpr std::optional<Enum> find(std::string_view name) const {
    for (std::size_t place = 0; place < kCount; ++place)
      if (name == names[place]) return static_cast<Enum>(place);
    return std::nullopt;
  }
};

}  // namespace precbench
