// A number that may be unknown. A record has about twenty, and NaN or infinity is never written to one.
#pragma once

#include <cmath>
#include <limits>
#include <optional>

namespace precbench {

/// Used like std::optional<double>, with the size of a double: NaN means unknown.
class OptionalNumber {
 public:
  OptionalNumber() = default;
  OptionalNumber(std::nullopt_t) {}
  OptionalNumber(double value) : value_(value) {}
  OptionalNumber(const std::optional<double>& value) : value_(value.value_or(kUnknown)) {}
  operator std::optional<double>() const { return has_value() ? std::optional(value_) : std::nullopt; }

  explicit operator bool() const { return has_value(); }
  bool has_value() const { return !std::isnan(value_); }
  double operator*() const { return value_; }
  double& operator*() { return value_; }
  double value_or(double other) const { return has_value() ? value_ : other; }
  double& emplace() { return value_ = 0; }
  void reset() { value_ = kUnknown; }

  /// Two unknown numbers are equal.
  friend bool operator==(const OptionalNumber& a, const OptionalNumber& b) {
    return a.has_value() ? a.value_ == b.value_ : !b.has_value();
  }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double value_ = kUnknown;
};

}  // namespace precbench
