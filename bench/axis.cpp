// Lists, ranges and their product.
#include "bench/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <regex>
#include <set>

#include "kernels/errors.h"

namespace precbench {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

/// Appends the range that `match` describes: first, last, operator, step.
void append_range(std::vector<std::string>& values, const Field& field, const std::smatch& match) {
  const auto fail = [&](const std::string& why) {
    throw InvalidInput(fmt::format("{}: range {} {}", flag_of(field), match.str(0), why));
  };
  std::int64_t first = 0, last = 0, step = 1;
  try {
    first = std::stoll(match.str(1));
    last = std::stoll(match.str(2));
    if (match[4].matched) step = std::stoll(match.str(4));
  } catch (const std::out_of_range&) {
    fail("has a number that is too large");
  }
  const bool geometric = match.str(3) == "*";
  if (first > last) fail("starts above its end");
  if (geometric ? step < 2 || first == 0 : step < 1) fail("never ends");
  const std::size_t size_before = values.size();
  for (std::int64_t value = first;;) {
    values.push_back(fmt::format("{}", value));
    if (values.size() - size_before > kMaxRange) fail(fmt::format("has more than {} values", kMaxRange));
    // Compared before stepping, so that nothing overflows.
    if (geometric ? value > last / step : value > last - step) break;
    value = geometric ? value * step : value + step;
  }
}

}  // namespace

std::vector<std::string> expand_axis(const Field& field, const std::vector<std::string>& words) {
  static const std::regex range(R"((\d+)-(\d+)(?:([*+])(\d+))?)");
  if (words.empty()) throw InvalidInput(fmt::format("{}: empty axis", flag_of(field)));
  std::vector<std::string> values;
  for (const std::string& word : words) {
    for (const std::string& value : split(word, ',')) {
      std::smatch match;
      if (value.empty()) throw InvalidInput(fmt::format("{}: empty value in \"{}\"", flag_of(field), word));
      if (field.is_integer() && std::regex_match(value, match, range))
        append_range(values, field, match);
      else
        values.push_back(value);
    }
  }
  return values;
}

void check_words(const Field& field, const std::vector<std::string>& words) {
  for (const std::string& value : field.axis ? expand_axis(field, words) : words) check_value(field, value);
}

std::vector<Case> expand_grid(const Case& base, const Axes& axes) {
  std::vector<const Field*> order;
  for (const Field& field : case_fields())
    if (std::string(field.name) != "recipe") order.push_back(&field);
  order.push_back(find_field("recipe"));

  std::vector<Case> grid = {base};
  for (const Field* field : order) {
    const auto axis = axes.find(field->name);
    if (axis == axes.end()) continue;
    const std::vector<std::string> values = expand_axis(*field, axis->second);
    std::vector<Case> next;
    next.reserve(grid.size() * values.size());
    for (const Case& outer : grid) {
      for (const std::string& value : values) {
        next.push_back(outer);
        set_text(next.back(), *field, value);
      }
    }
    grid = std::move(next);
  }
  std::vector<Case> unique;
  for (std::set<std::string> seen; Case & c : grid)
    if (seen.insert(case_to_json(c).dump()).second) unique.push_back(std::move(c));
  return unique;
}

}  // namespace precbench
