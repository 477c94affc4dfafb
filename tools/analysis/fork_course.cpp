// Least squares over a grid of time constants. See fork_course.h.
#include "tools/analysis/fork_course.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace precbench {
namespace {

constexpr double kTimeConstants = 3;  ///< minimum length of a fork with a plateau, in time constants

double mean_of(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

/// One function of the step, fitted together with an offset.
class Regressor {
 public:
  template <class Function>
  Regressor(std::size_t steps, Function function) {
    for (std::size_t t = 0; t < steps; ++t) x_.push_back(function(static_cast<double>(t)));
    mean_ = mean_of(x_, 0, steps);
    for (double& x : x_) x -= mean_, squares_ += x * x;
  }

  struct Fit {
    double offset = 0;   ///< fitted value where the function is 0
    double squares = 0;  ///< sum of squared residuals
  };
  Fit fit(const std::vector<double>& y) const {
    const double mean = mean_of(y, 0, x_.size());
    double both = 0, own = 0;
    for (std::size_t t = 0; t < x_.size(); ++t) {
      both += x_[t] * (y[t] - mean);
      own += (y[t] - mean) * (y[t] - mean);
    }
    const double slope = squares_ > 0 ? both / squares_ : 0;
    return {mean - slope * mean_, std::max(0.0, own - slope * both)};
  }
  double squares(const std::vector<std::vector<double>>& courses) const {
    double sum = 0;
    for (const std::vector<double>& course : courses) sum += fit(course).squares;
    return sum;
  }

 private:
  std::vector<double> x_;  ///< minus their mean
  double mean_ = 0, squares_ = 0;
};

/// Returns exponentials for a geometric grid of time constants from one step to twice the fork, shortest
/// first.
std::vector<std::pair<double, Regressor>> exponentials(std::size_t steps) {
  constexpr double kRatio = 1.12;
  std::vector<std::pair<double, Regressor>> all;
  for (double tau = 1; tau <= 2 * static_cast<double>(steps); tau *= kRatio)
    all.emplace_back(tau, Regressor(steps, [factor = std::exp(-1 / tau), x = 1.0](double) mutable {
                       return std::exchange(x, x * factor);
                     }));
  return all;
}

std::optional<MeanWithInterval> change_of(const std::vector<std::vector<double>>& trunks, std::size_t steps) {
  std::vector<double> changes;
  for (const std::vector<double>& course : trunks)
    changes.push_back(mean_of(course, steps - steps / 4, steps) - mean_of(course, 0, steps / 10));
  return mean_with_interval(changes);
}

CourseShape shape_of(const MeanWithInterval& change, double small) {
  if (change.high < 0) return CourseShape::falling;
  if (change.low > 0) return CourseShape::growing;
  return change.low > -small && change.high < small ? CourseShape::flat : CourseShape::unclear;
}

}  // namespace

const char* name_of(CourseShape shape) {
  static constexpr const char* kNames[] = {"falling", "flat", "growing", "unclear"};
  return kNames[static_cast<int>(shape)];
}

std::optional<ForkCourse> fit_course(const std::vector<std::vector<double>>& trunks, double small) {
  std::size_t steps = SIZE_MAX;
  for (const std::vector<double>& course : trunks) {
    steps = std::min(steps, course.size());
    if (!std::all_of(course.begin(), course.end(), [](double d) { return std::isfinite(d); }))
      return std::nullopt;
  }
  if (trunks.size() < 2 || steps < kFewestCourseSteps) return std::nullopt;
  ForkCourse result;
  result.change = *change_of(trunks, steps);
  result.shape = shape_of(result.change, small);

  const auto grid = exponentials(steps);
  double least = INFINITY;
  for (const auto& [tau, regressor] : grid)
    if (const double squares = regressor.squares(trunks); squares < least) least = squares, result.tau = tau;
  const double longest = static_cast<double>(steps) / kTimeConstants;
  const Regressor logarithm(steps, [](double t) { return std::log1p(t); });
  if (result.shape != CourseShape::flat && (result.tau > longest || logarithm.squares(trunks) < least))
    return result;

  std::vector<double> plateaus;
  for (const std::vector<double>& course : trunks) {
    Regressor::Fit best{0, INFINITY};
    for (const auto& [tau, regressor] : grid) {
      if (tau > longest) break;
      if (const auto fit = regressor.fit(course); fit.squares < best.squares) best = fit;
    }
    plateaus.push_back(best.offset);
  }
  result.plateau = mean_with_interval(plateaus);
  return result;
}

}  // namespace precbench
