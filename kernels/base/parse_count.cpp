// Reads decimal notation exactly, in integers. See parse_count.h.
#include "kernels/base/parse_count.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::string_view take_digits(std::string_view& text) {
  const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

/// The digits of a number and the power of ten of its last digit.
struct Decimal {
  std::string digits{};
  int exponent = 0;
};

/// Removes a number without sign from the start of the text; null if there is none.
std::optional<Decimal> take_decimal(std::string_view& text) {
  constexpr int kMostExponent = 30;  // no such number fits, whatever its digits
  Decimal decimal{std::string(take_digits(text)), 0};
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    const std::string_view fraction = take_digits(text);
    if (fraction.empty()) return std::nullopt;
    decimal.digits += fraction;
    decimal.exponent = -static_cast<int>(std::min<std::size_t>(fraction.size(), 1000));
  }
  if (decimal.digits.empty()) return std::nullopt;
  if (text.empty() || lower(text.front()) != 'e') return decimal;
  text.remove_prefix(1);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto exponent = parse_number<int>(take_digits(text));
  if (!exponent || *exponent > kMostExponent) return std::nullopt;
  decimal.exponent += negative ? -*exponent : *exponent;
  return decimal;
}

/// Returns digits times 10^exponent times factor; null unless that is whole and fits.
std::optional<std::int64_t> value_of(Decimal decimal, std::int64_t factor) {
  while (decimal.exponent < 0 && decimal.digits.size() > 1 && decimal.digits.back() == '0') {
    decimal.digits.pop_back();
    ++decimal.exponent;
  }
  __extension__ typedef __int128 Wide;
  Wide value = 0;
  constexpr Wide kMost = std::numeric_limits<std::int64_t>::max();
  const auto grow = [&](int by, int plus) { value = value > kMost ? value : value * by + plus; };
  for (const char digit : decimal.digits) grow(10, digit - '0');
  if (value > kMost) return std::nullopt;
  value *= factor;  // below 2^127: the factor is at most 10^12
  for (; decimal.exponent < 0; ++decimal.exponent) {
    if (value % 10 != 0) return std::nullopt;
    value /= 10;
  }
  for (; decimal.exponent > 0; --decimal.exponent) grow(10, 0);
  return value > kMost ? std::nullopt : std::optional(static_cast<std::int64_t>(value));
}

}  // namespace

std::optional<Count> parse_count(std::string_view text) {
  constexpr std::array<std::pair<char, int>, 4> kSuffixes = {{{'k', 1}, {'m', 2}, {'b', 3}, {'t', 4}}};
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const std::optional<Decimal> decimal = take_decimal(text);
  if (!decimal || text.size() > 1) return std::nullopt;
  Count count;
  std::int64_t factor = 1, binary = 1;
  if (!text.empty()) {
    count.suffix = lower(text.front());
    const auto known = std::find_if(kSuffixes.begin(), kSuffixes.end(),
                                    [&](const auto& one) { return one.first == count.suffix; });
    if (known == kSuffixes.end()) return std::nullopt;
    for (int i = 0; i < known->second; ++i) factor *= 1000, binary *= 1024;
  }
  const auto value = value_of(*decimal, factor);
  if (!value) return std::nullopt;
  count.value = negative ? -*value : *value;
  if (count.suffix == 'k' || count.suffix == 'm')
    if (const auto other = value_of(*decimal, binary)) count.binary = negative ? -*other : *other;
  return count;
}

std::optional<std::int64_t> parse_whole(std::string_view text) {
  const std::optional<Count> count = parse_count(text);
  return count && count->suffix == 0 ? std::optional(count->value) : std::nullopt;
}

std::optional<std::string> plain_forms(std::string_view text) {
  const std::optional<Count> count = parse_count(text);
  if (!count || count->suffix == 0) return std::nullopt;
  const std::string decimal = std::to_string(count->value);
  return count->binary ? std::to_string(*count->binary) + " or " + decimal : decimal;
}

std::optional<double> parse_seconds(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 6> kUnits = {
      {{"ms", 1e-3}, {"min", 60}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}};
  double factor = 1;
  for (const auto& [unit, seconds] : kUnits)
    if (text.ends_with(unit)) {
      factor = seconds;
      text.remove_suffix(unit.size());
      break;
    }
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.back())) == 0) return std::nullopt;
  const auto number = parse_number<double>(text);
  return number && std::isfinite(*number * factor) ? std::optional(*number * factor) : std::nullopt;
}

}  // namespace precbench
