// Numbers from text that a user or a file gives.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace precbench {

/// Parses the whole of `text` as a decimal number; null if it is not one or does not fit T. Accepts no spaces and no plus
/// sign, and for floating point also "inf" and "nan".
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, value) != std::from_chars_result{end, std::errc()})
    return std::nullopt;
  return value;
}

}  // namespace precbench
