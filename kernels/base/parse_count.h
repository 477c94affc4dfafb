// Whole numbers and durations as people write them: "8192", "1e3", "2T"; "90", "10s", "1.5h". Every flag and every
// file reads them here, so that a form that one accepts is accepted by all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace precbench {

/// A whole number in decimal notation.
struct Count {
  std::int64_t value = 0;  ///< with the suffix as a power of 1000
  char suffix = 0;         ///< 'k', 'm', 'b' or 't'; 0 without one
  /// With the suffix as a power of 1024; null without suffix k or m, and if that is not whole.
  std::optional<std::int64_t> binary{};
};

/// Parses digits with an optional sign, fraction, exponent and suffix, in either case: "-3", "1e3", "1.5e9", "300B".
/// The value is exact. Null if the text is anything else, or if the value is not whole or does not fit.
std::optional<Count> parse_count(std::string_view text);

/// Parses a number without suffix; null for anything else.
std::optional<std::int64_t> parse_whole(std::string_view text);

/// Returns how to write a number of which a suffix was typed: "8192 or 8000" for 8k, "300000000000" for 300B. Null
/// if the text is no such number.
std::optional<std::string> plain_forms(std::string_view text);

/// Parses a number of seconds with an optional unit: ms, s, m or min, h, d. Null for anything else, and for "inf"
/// and "nan".
std::optional<double> parse_seconds(std::string_view text);

}  // namespace precbench
