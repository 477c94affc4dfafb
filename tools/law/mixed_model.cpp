// Ridge regression and a search for two standard deviations. See mixed_model.h.
#include "tools/law/mixed_model.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace precbench {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

/// Returns the lower triangle of the Cholesky factor of a positive definite matrix.
Matrix cholesky(const Matrix& a) {
  Matrix l(a.size(), Vector(a.size(), 0.0));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
      l[i][j] = i == j ? std::sqrt(sum) : sum / l[j][j];
    }
  return l;
}

/// Solves L L' x = b.
Vector solve(const Matrix& l, Vector b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= l[i][k] * b[k];
    b[i] /= l[i][i];
  }
  for (std::size_t i = b.size(); i-- > 0;) {
    for (std::size_t k = i + 1; k < b.size(); ++k) b[i] -= l[k][i] * b[k];
    b[i] /= l[i][i];
  }
  return b;
}

/// The normal equations for given standard deviations.
struct Equations {
  Matrix factor;          ///< Cholesky factor of the matrix
  Vector solution;        ///< coefficients, then group effects
  double likelihood = 0;  ///< logarithm of the restricted likelihood, up to a constant
};

Equations solve_with(const std::vector<MixedPoint>& points, const std::vector<bool>& free, double between,
                     double within) {
  const std::size_t coefficients = points.front().x.size(), columns = coefficients + free.size();
  Matrix a(columns, Vector(columns, 0.0));
  Vector b(columns, 0.0);
  double log_det = 0, squares = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    const bool random = i >= coefficients && !free[i - coefficients];
    const double prior = random ? between : kUndetermined;
    a[i][i] = 1 / (prior * prior);
    log_det += 2 * std::log(prior);
  }
  for (const MixedPoint& point : points) {
    const double weight = 1 / (within * within + point.variance);
    log_det -= std::log(weight);
    squares += weight * point.y * point.y;
    std::vector<std::pair<std::size_t, double>> row;  // columns other than 0
    for (std::size_t i = 0; i < coefficients; ++i)
      if (point.x[i] != 0) row.emplace_back(i, point.x[i]);
    row.emplace_back(coefficients + point.group, 1.0);
    for (const auto& [i, x] : row) {
      b[i] += weight * x * point.y;
      for (const auto& [j, z] : row) a[i][j] += weight * x * z;
    }
  }
  Equations result{cholesky(a), {}, 0};
  result.solution = solve(result.factor, b);
  double explained = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    explained += result.solution[i] * b[i];
    log_det += 2 * std::log(result.factor[i][i]);
  }
  result.likelihood = -0.5 * (log_det + squares - explained);
  return result;
}

}  // namespace

Estimate MixedFit::estimate(std::size_t coefficient) const {
  return {coefficients[coefficient], std::sqrt(covariance[coefficient][coefficient])};
}

Estimate MixedFit::mean_at(const std::vector<double>& x) const {
  double mean = 0, variance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean += x[i] * coefficients[i];
    for (std::size_t j = 0; j < x.size(); ++j) variance += x[i] * covariance[i][j] * x[j];
  }
  return {mean, std::sqrt(variance)};
}

MixedFit fit_mixed_model(const std::vector<MixedPoint>& points, const std::vector<bool>& free) {
  // Pattern search over the logarithms of both: steps to a better neighbour, or halves the step.
  std::array<double, 2> at = {std::log(0.2), std::log(0.2)};
  const auto equations = [&](const std::array<double, 2>& logs) {
    return solve_with(points, free, std::exp(logs[0]), std::exp(logs[1]));
  };
  Equations best = equations(at);
  for (double step = 0.5; step > 1e-3;) {
    bool moved = false;
    for (const auto& [i, direction] :
         {std::pair(0, 1), std::pair(0, -1), std::pair(1, 1), std::pair(1, -1)}) {
      std::array<double, 2> next = at;
      next[static_cast<std::size_t>(i)] =
          std::clamp(next[static_cast<std::size_t>(i)] + direction * step, std::log(1e-3), std::log(1e2));
      Equations tried = equations(next);
      if (!(tried.likelihood > best.likelihood + 1e-9)) continue;
      at = next, best = std::move(tried), moved = true;
    }
    if (!moved) step /= 2;
  }
  MixedFit fit;
  fit.between = std::exp(at[0]), fit.within = std::exp(at[1]);
  const std::size_t coefficients = points.front().x.size();
  fit.coefficients.assign(best.solution.begin(),
                          best.solution.begin() + static_cast<std::ptrdiff_t>(coefficients));
  for (std::size_t i = 0; i < coefficients; ++i) {
    Vector unit(best.solution.size(), 0.0);
    unit[i] = 1;
    Vector column = solve(best.factor, std::move(unit));
    column.resize(coefficients);
    fit.covariance.push_back(std::move(column));
  }
  return fit;
}

}  // namespace precbench
