// A linear model with random group effects: y = x b + u(group) + e.
//
// Every group effect u is one more coefficient, with a normal prior of mean 0 and standard deviation `between`. So the
// fit is ridge regression: weighted least squares in which group effects are pulled towards 0 (Henderson's mixed model
// equations). The scatter e has the variance within^2 plus that of the measurement. Both standard deviations maximize
// the restricted likelihood.
#pragma once

#include <cstddef>
#include <vector>

namespace precbench {

/// One measurement.
struct MixedPoint {
  std::vector<double> x;  ///< factors of the coefficients, as many for every point
  double y = 0;
  double variance = 0;  ///< of the measurement
  std::size_t group = 0;
};

/// A value with its standard error.
struct Estimate {
  double value = 0, error = 0;
};

struct MixedFit {
  std::vector<double> coefficients;             ///< without the group effects
  std::vector<std::vector<double>> covariance;  ///< of the coefficients
  double between = 0, within = 0;               ///< standard deviations of group effects and of scatter

  Estimate estimate(std::size_t coefficient) const;
  /// Returns the mean of y for a new group, with the standard error that the coefficients give it.
  Estimate mean_at(const std::vector<double>& x) const;
};

/// Fits the points, of which there must be at least one. `free`: one entry per group; the effect of a free group has no
/// prior, so that its points determine no level. A coefficient that the points do not determine has a standard error of
/// about kUndetermined.
MixedFit fit_mixed_model(const std::vector<MixedPoint>& points, const std::vector<bool>& free);

/// Standard deviation of the prior of coefficients and of free groups, in units of y: so large that it has no
/// influence.
inline constexpr double kUndetermined = 100;

}  // namespace precbench
