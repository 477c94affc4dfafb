// Checks numbers before they are converted. See number_range.h.
#include "kernels/base/number_range.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Returns a bound as people write it: "1048576", "0.001", "1e+12".
std::string bound_text(double bound) {
  constexpr double kMostWritten = 1e9;
  return bound == std::floor(bound) && std::abs(bound) < kMostWritten ? fmt::format("{:.0f}", bound)
                                                                      : fmt::format("{:g}", bound);
}

[[noreturn]] void refuse(const nlohmann::json& json, const char* kind, const NumberRange& range,
                         const std::string& where) {
  constexpr std::size_t kMostLetters = 60;
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  throw InvalidInput(
      fmt::format("{}: {} is not a {} from {} to {}", where,
                  text.size() <= kMostLetters ? text : "a long " + std::string(json.type_name()), kind,
                  bound_text(range.low), bound_text(range.high)));
}

}  // namespace

double number_within(const nlohmann::json& json, const NumberRange& range, const std::string& where) {
  if (!json.is_number() || !range.contains(json.get<double>())) refuse(json, "number", range, where);
  return json.get<double>();
}

std::int64_t integer_within(const nlohmann::json& json, const NumberRange& range, const std::string& where) {
  const bool whole = json.is_number() && range.contains(json.get<double>()) &&
                     json.get<double>() == std::floor(json.get<double>());
  if (!whole) refuse(json, "whole number", range, where);
  return json.get<std::int64_t>();
}

}  // namespace precbench
