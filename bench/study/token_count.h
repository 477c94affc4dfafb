// Parses a number of tokens as people write it: "2T", "300B", "1.5e9".
#pragma once

#include <cstdint>
#include <string>

namespace precbench {

/// Parses a number with an optional suffix k, M, B or T (powers of 1000, in either case). Throws InvalidInput
/// for anything else, and for numbers outside [1, 9e15].
std::int64_t parse_token_count(const std::string& text);

}  // namespace precbench
