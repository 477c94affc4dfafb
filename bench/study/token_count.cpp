// Parses token counts. See token_count.h.
#include "bench/study/token_count.h"

#include <fmt/format.h>

#include "kernels/base/errors.h"
#include "kernels/base/parse_count.h"

namespace precbench {

std::int64_t parse_token_count(const std::string& text) {
  constexpr std::int64_t kMost = 9'000'000'000'000'000;  // doubles represent integers exactly up to here
  const auto count = parse_count(text);
  if (!count)
    throw InvalidInput(fmt::format("\"{}\" is not a number of tokens, such as 300B, 2T or 1.5e9", text));
  if (count->value < 1 || count->value > kMost)
    throw InvalidInput(fmt::format("{} is not in [1, {:g}]", text, static_cast<double>(kMost)));
  return count->value;
}

}  // namespace precbench
