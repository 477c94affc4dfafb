// Growth of a recipe's loss gap with the age of the model: a power law in tokens per parameter, fitted to a
// study's forks at several ages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "results/record/statistics.h"

namespace precbench {

/// Mean loss gap of one trunk's forks at one age.
struct AgedGap {
  std::int64_t trunk = 0;
  double tokens_per_parameter = 0;  ///< above 0
  double gap = 0;                   ///< loss of the recipe minus loss of BF16, in nats or over a loss
};

/// gap(x) = scale * x^exponent, with x in tokens per parameter. Each trunk is fitted separately by least
/// squares in nats, because a fork's noise does not grow with the gap. Intervals are Student's t over the
/// trunks, the independent units.
class AgeLaw {
 public:
  struct Trunk {
    double scale = 0, exponent = 0;
  };

  explicit AgeLaw(std::vector<Trunk> trunks) : trunks_(std::move(trunks)) {}

  /// Returns the mean exponent with its 95% interval; needs two trunks. Above zero: the gap grows with age.
  MeanWithInterval exponent() const;
  /// Returns the gap in nats that the trunks' laws predict at an age. Extrapolates beyond the measured
  /// ages.
  MeanWithInterval at(double tokens_per_parameter) const;

  const std::vector<Trunk>& trunks() const { return trunks_; }

 private:
  std::vector<Trunk> trunks_;
};

/// Minimum ratio of the oldest to the youngest age of a fit. Over a narrower range, the exponent says nothing
/// about other ages.
inline constexpr double kSmallestAgeSpan = 10;

/// Maximum length of a fork in a fit, as a fraction of the tokens that its model has seen before. The gap of
/// a longer fork belongs to no one age: the model changes too much along it.
inline constexpr double kLongestFork = 1.0 / 3;

/// Returns the fitted law. Null with fewer than two trunks that have gaps at three or more ages spanning
/// kSmallestAgeSpan, or if a trunk's best exponent is at the limit of the search range [-2, 2]: such gaps do
/// not follow a power law.
std::optional<AgeLaw> fit_age_law(const std::vector<AgedGap>& gaps);

}  // namespace precbench
