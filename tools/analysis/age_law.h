// How the price of a recipe grows with the age of the model: a power law in tokens per parameter, fitted to the forks of a study
// with several ages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "results/statistics.h"

namespace precbench {

/// The mean price of one trunk's forks at one age.
struct AgedPrice {
  std::int64_t trunk = 0;
  double tokens_per_parameter = 0;  ///< above 0
  double price = 0;                 ///< nats: loss of the recipe minus that of BF16
};

/// price(x) = scale * x^exponent, x in tokens per parameter. Every trunk is fitted by itself by least squares in nats, since the
/// noise of a fork does not grow with the price; intervals are Student's t over the trunks, which are the independent units.
class AgeLaw {
 public:
  struct Trunk {
    double scale = 0, exponent = 0;
  };

  explicit AgeLaw(std::vector<Trunk> trunks) : trunks_(std::move(trunks)) {}

  /// Returns the mean exponent with its 95% interval; at least two trunks. Above zero: the price grows with age.
  MeanWithInterval exponent() const;
  /// Returns the price at an age, in nats, as the trunks' laws predict it. Beyond the measured ages it is an extrapolation.
  MeanWithInterval at(double tokens_per_parameter) const;

  const std::vector<Trunk>& trunks() const { return trunks_; }

 private:
  std::vector<Trunk> trunks_;
};

/// Ages that lie closer together than this factor give no law: its exponent would say nothing of other ages.
inline constexpr double kSmallestAgeSpan = 10;

/// Returns the law, or nothing where fewer than two trunks have prices at three or more ages that span kSmallestAgeSpan, or where
/// a trunk's best exponent is at the limit of what is searched, [-2, 2]: such prices follow no power of the age.
std::optional<AgeLaw> fit_age_law(const std::vector<AgedPrice>& prices);

}  // namespace precbench
