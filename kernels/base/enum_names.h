// Names of an enum's values, written once: for both directions between a value and its name.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace precbench {

/// The name of each value, in the order of the values from 0 without gaps: `EnumNames<Side, 2>{{"left", "right"}}`.
template <class Enum, std::size_t kCount>
struct EnumNames {
  const char* names[kCount];

  /// "?" for a number that is no value.
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
