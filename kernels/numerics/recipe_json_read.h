// Reads a recipe's JSON: values are checked one by one, with errors that name the field; also its operands
// and FP4 keys. Only the files recipe_json*.cpp include this.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/numerics/recipe.h"

namespace precbench::recipe_json {

using nlohmann::json;

[[noreturn]] inline void fail(const std::string& path, const std::string& what) {
  throw InvalidInput(fmt::format("{}: {}", path, what));
}

/// Returns `; did you mean X?` for a likely typo, else the list of valid words.
inline std::string hint(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? fmt::format("; one of {}", fmt::join(known, ", "))
                      : fmt::format("; did you mean {}?", near);
}

inline std::string child(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

inline void check_keys(const json& object, const std::string& path, const std::vector<std::string>& known) {
  if (!object.is_object()) fail(path.empty() ? "recipe" : path, "expected a JSON object");
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail(child(path, key), "unknown key" + hint(key, known));
}

inline const json& require(const json& object, std::string_view path, const char* key, std::string_view why) {
  const auto it = object.find(key);
  if (it == object.end()) fail(child(std::string(path), key), fmt::format("missing; {}", why));
  return *it;
}

inline std::string read_string(const json& value, const std::string& path) {
  if (!value.is_string()) fail(path, "expected a string, got " + value.dump());
  return value.get<std::string>();
}

template <class Enum, std::size_t kCount>
Enum read_enum(const json& value, const std::string& path, const Enum (&known)[kCount]) {
  const std::string word = read_string(value, path);
  std::vector<std::string> names;
  for (Enum candidate : known) {
    if (word == name_of(candidate)) return candidate;
    names.push_back(name_of(candidate));
  }
  fail(path, fmt::format("unknown value \"{}\"{}", word, hint(word, names)));
}

template <class Number>
Number read_whole(const json& value, const std::string& path, Number least, Number most) {
  if (!value.is_number_integer() || value < least || value > most)
    fail(path, fmt::format("expected a whole number from {} to {}, got {}", least, most, value.dump()));
  return value.get<Number>();
}

/// Reads one of a few numbers.
template <class Number, std::size_t kCount>
Number read_number(const json& value, const std::string& path, const Number (&known)[kCount]) {
  if (value.is_number())
    for (const Number candidate : known)
      if (std::fabs(value.get<double>() - static_cast<double>(candidate)) < 1e-4) return candidate;
  fail(path, fmt::format("expected one of {}, got {}", fmt::join(known, ", "), value.dump()));
}

/// Returns the shortest decimal number that reads back as this float; a whole number without a point.
inline json short_number(float x) {
  if (x == std::floor(x) && std::fabs(x) < 1e9f) return static_cast<int>(x);
  return json::parse(fmt::format("{}", x));
}

inline bool read_bool(const json& value, const std::string& path) {
  if (!value.is_boolean()) fail(path, "expected true or false, got " + value.dump());
  return value.get<bool>();
}

/// A recipe's operands, given by name or inline.
class Operands {
 public:
  explicit Operands(const json& recipe);
  /// Reads an object or a name. `path`: location for errors.
  QuantFormat read(const json& operand, const std::string& path);
  /// Throws if a named operand is unused; call it after all are read.
  void check_all_used() const;

 private:
  const json& named(const std::string& name, const std::string& path);
  /// Returns the operand with `like` resolved.
  json whole(json operand, const std::string& path);

  json named_ = json::object();
  std::set<std::string> used_;
};
json operand_to_json(const QuantFormat& operand);

/// FP4-only keys of an operand.
inline constexpr const char* kFp4Keys[] = {"global_scale",  "element_rounding", "transform", "element_scale",
                                           "four_over_six", "correction",       "source"};

/// Reads the FP4 keys and checks that the operand is NVFP4 or MXFP4. Everything else of the operand must be
/// read before.
void read_fp4(const json& object, const std::string& path, QuantFormat& operand);
void fp4_to_json(const QuantFormat& operand, json& object);

/// Checks operands from fprop's codes, random signs, and gradients masked where fprop clipped.
void check_fp4_backward(const Recipe& recipe);

}  // namespace precbench::recipe_json
