// Parses token counts. See token_count.h.
#include "bench/study/token_count.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

#include "kernels/base/errors.h"

namespace precbench {

std::int64_t parse_token_count(const std::string& text) {
  constexpr double kMost = 9e15;  // doubles represent integers exactly up to here
  constexpr std::string_view kSuffixes = "kmbt";
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  bool is_number = error == std::errc();
  if (is_number && end - rest == 1) {
    const auto suffix = kSuffixes.find(static_cast<char>(std::tolower(static_cast<unsigned char>(*rest))));
    is_number = suffix != std::string_view::npos;
    if (is_number) value *= std::pow(1000, suffix + 1);
  } else {
    is_number = is_number && rest == end;
  }
  if (!is_number)
    throw InvalidInput(fmt::format("\"{}\" is not a number of tokens, such as 300B, 2T or 1.5e9", text));
  if (!(value >= 1 && value <= kMost)) throw InvalidInput(fmt::format("{} is not in [1, {:g}]", text, kMost));
  return std::llround(value);
}

}  // namespace precbench
