// Reads numbers of JSON files that people write, each with the range that is allowed for it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace precbench {

/// Closed range of a number. Bounds keep later arithmetic finite, integers from overflowing and loops short, so they
/// belong to what the number is used for; typing errors fall outside of them.
struct NumberRange {
  double low = 0, high = 0;

  bool contains(double value) const { return value >= low && value <= high; }  // false for NaN
};

/// Returns the number. Throws InvalidInput "WHERE: VALUE is not a number from LOW to HIGH" for another type, NaN, or a
/// value outside the range.
double number_within(const nlohmann::json& json, const NumberRange& range, const std::string& where);

/// Returns the whole number, which may be written as "8.0". Throws InvalidInput "WHERE: VALUE is not a whole number
/// from LOW to HIGH". `range`: within that of std::int64_t.
std::int64_t integer_within(const nlohmann::json& json, const NumberRange& range, const std::string& where);

}  // namespace precbench
