// Parsing of lists and ranges, and their Cartesian product. See axis.h.
#include "bench/cli/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <variant>

#include "bench/case/definition.h"
#include "bench/cli/recipe_sets.h"
#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "kernels/base/parse_count.h"
#include "models/config/hub_names.h"

namespace precbench {
namespace {

/// Removes the leading digits of `text` and returns them, possibly none.
std::string_view take_digits(std::string_view& text) {
  const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

/// Returns true if `text` is the exponent of a number, such as "e-4".
bool is_exponent(std::string_view text) {
  if (!text.starts_with('e') && !text.starts_with('E')) return false;
  text.remove_prefix(1);
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return !take_digits(text).empty() && text.empty();
}

/// Removes a leading whole number, "8192" or "1e3", of `text` and returns it; empty if there is none.
std::string_view take_number(std::string_view& text) {
  std::string_view rest = text;
  if (take_digits(rest).empty()) return {};
  if (rest.starts_with('e') || rest.starts_with('E')) {
    std::string_view exponent = rest.substr(1);
    if (!take_digits(exponent).empty()) rest = exponent;
  }
  const std::string_view number = text.substr(0, text.size() - rest.size());
  text = rest;
  return number;
}

/// Range as written: FIRST-LAST, FIRST-LAST*FACTOR or FIRST-LAST+STEP.
struct Range {
  std::string_view first, last, step;
  char operation = '+';
};
std::optional<Range> parse_range(std::string_view text) {
  Range range;
  range.first = take_number(text);
  if (range.first.empty() || !text.starts_with('-')) return std::nullopt;
  text.remove_prefix(1);
  range.last = take_number(text);
  if (range.last.empty()) return std::nullopt;
  if (text.empty()) return range;
  range.operation = text.front();
  text.remove_prefix(1);
  range.step = take_number(text);
  const bool known = range.operation == '*' || range.operation == '+';
  return known && !range.step.empty() && text.empty() ? std::optional(range) : std::nullopt;
}

/// Throws InvalidInput for a range in another program's notation, such as "64..128" or "1..8x2".
void refuse_dots(const Field& field, const std::string& text) {
  std::string_view rest = text;
  const std::string first(take_digits(rest));
  if (first.empty() || !rest.starts_with("..")) return;
  rest.remove_prefix(2);
  if (rest.starts_with('.')) rest.remove_prefix(1);
  const std::string last(take_digits(rest));
  if (last.empty()) return;
  throw InvalidInput(
      fmt::format("{}: \"{}\" is not a range; ranges are {}-{}*2 to double and {}-{}+N in steps of N",
                  flag_of(field), text, first, last, first, last));
}

void append_range(std::vector<std::string>& values, const Field& field, const std::string& text,
                  const Range& range) {
  const auto fail = [&](const std::string& why) {
    throw InvalidInput(fmt::format("{}: range {} {}", flag_of(field), text, why));
  };
  const auto number = [&](std::string_view digits) {
    const auto value = parse_whole(digits);
    if (!value) fail("has a number that is too large");
    return *value;
  };
  const std::int64_t first = number(range.first), last = number(range.last),
                     step = range.step.empty() ? 1 : number(range.step);
  const bool geometric = range.operation == '*';
  if (first > last) fail("starts above its end");
  if (range.step.empty() && last - first >= kMaxWithoutStep)
    fail(fmt::format("has {} values; to mean them, write the step, {}+1; to double, {}*2",
                     static_cast<std::uint64_t>(last - first) + 1, text, text));
  if (geometric ? step < 2 || first == 0 : step < 1) fail("never ends");
  const std::size_t size_before = values.size();
  for (std::int64_t value = first;;) {
    values.push_back(fmt::format("{}", value));
    if (values.size() - size_before > kMaxRange) fail(fmt::format("has more than {} values", kMaxRange));
    // Compare before stepping: the next value may overflow.
    if (geometric ? value > last / step : value > last - step) break;
    value = geometric ? value * step : value + step;
  }
}

/// Returns the name of the built-in recipe that is written in other letter case, else the value itself.
std::string recipe_name(const std::string& value) {
  if (value.ends_with(".json")) return value;
  for (const Recipe& recipe : named_recipes())
    if (equal_but_for_case(recipe.name, value)) return recipe.name;
  return value;
}

/// Appends the values that one element of a list stands for: a range, a set of recipes, a model by any of its
/// names, or itself.
void append_values(std::vector<std::string>& values, const Field& field, const std::string& value) {
  const std::string_view name = field.name;
  if (field.is_integer()) {
    refuse_dots(field, value);
    if (const std::optional<Range> range = parse_range(value))
      return append_range(values, field, value, *range);
  }
  if (name == "recipe") {
    if (const auto recipes = recipes_in(value)) {
      values.insert(values.end(), recipes->begin(), recipes->end());
      return;
    }
  }
  values.push_back(name == "model" ? preset_name(value) : name == "recipe" ? recipe_name(value) : value);
}

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string> expand_axis(const Field& field, const std::vector<std::string>& words) {
  if (words.empty()) throw InvalidInput(fmt::format("{}: empty axis", flag_of(field)));
  std::vector<std::string> values;
  for (const std::string& word : words) {
    for (const std::string& value : split(word, ',')) {
      if (value.empty()) throw InvalidInput(fmt::format("{}: empty value in \"{}\"", flag_of(field), word));
      append_values(values, field, value);
    }
  }
  return values;
}

std::string comma_hint(const Field& field, const std::vector<std::string>& words) {
  if (std::holds_alternative<std::string Case::*>(field.member)) return "";
  for (const std::string& word : words) {
    const std::vector<std::string> parts = split(word, ',');
    if (parts.size() != 2) continue;
    std::string_view before = parts[0], behind = parts[1];
    if (take_digits(before).empty() || !before.empty()) continue;
    const std::string_view digits = take_digits(behind);
    if (digits.empty() || (!behind.empty() && !is_exponent(behind))) continue;
    constexpr std::size_t kOfThousands = 3;
    const bool thousands = behind.empty() && digits.size() == kOfThousands && digits.starts_with('0');
    if (field.is_integer() && !thousands) continue;
    const std::string one = field.is_integer()
                                ? fmt::format("without the comma it is {}{}", parts[0], parts[1])
                                : fmt::format("with a decimal point it is {}.{}", parts[0], parts[1]);
    return field.axis ? fmt::format("{} is two values, {} and {}; {}", word, parts[0], parts[1], one) : one;
  }
  return "";
}

void check_words(const Field& field, const std::vector<std::string>& words) {
  try {
    for (const std::string& value : field.axis ? expand_axis(field, words) : words)
      if (field.name != std::string_view("recipe") || !recipes_in(value)) check_value(field, value);
  } catch (const InvalidInput& error) {
    const std::string hint = comma_hint(field, words);
    if (hint.empty()) throw;
    throw InvalidInput(fmt::format("{}; {}", error.what(), hint));
  }
}

void check_count(std::size_t cases) {
  if (cases > kMaxCases)
    throw InvalidInput(fmt::format("more than {} cases, the limit of a sweep", kMaxCases));
}

std::vector<Case> expand_grid(const Case& base, const Axes& axes) {
  std::vector<const Field*> order;
  for (const Field& field : case_fields())
    if (std::string(field.name) != "recipe") order.push_back(&field);
  order.push_back(find_field("recipe"));

  std::size_t cases = 1;
  for (const auto& [name, words] : axes) {
    cases *= expand_axis(*find_field(name), words).size();
    check_count(cases);
  }
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
