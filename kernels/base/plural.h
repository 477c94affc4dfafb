// Counts of things in messages.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>

namespace precbench {

/// Returns "1 case", "3 cases": for nouns whose plural ends in s.
std::string plural(std::integral auto count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace precbench
