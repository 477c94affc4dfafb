// One-sided t tests and Holm's correction. See equivalence.h.
#include "tools/analysis/equivalence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace precbench {

double p_of_beyond(const std::vector<double>& units, double bound, int sign) {
  const MeanAndSpread m = mean_and_spread(units);
  const double n = static_cast<double>(units.size()), error = m.sd / std::sqrt(n);
  const double distance = sign * m.mean - bound;  // negative: inside
  if (error == 0) return distance < 0 ? 0 : 1;
  const double p = student_t_cdf(distance / error, n - 1);
  return std::isnan(p) ? 1 : p;  // differences beyond the range of double prove nothing
}

double equivalence_p(const std::vector<double>& units, double bound) {
  return std::max(p_of_beyond(units, bound, +1), p_of_beyond(units, bound, -1));
}

bool is_equivalent(const std::vector<double>& units, double bound, double level) {
  return units.size() >= std::size_t{kFewestUnits} && equivalence_p(units, bound) <= level;
}

double half_width(const MeanAndSpread& units, int count, double tail) {
  return student_t_quantile(1 - tail, count - 1) * units.sd / std::sqrt(count);
}

bool would_be_equivalent(const MeanAndSpread& units, int count, double bound, double level) {
  return std::abs(units.mean) + half_width(units, count, level) < bound;
}

bool would_differ(const MeanAndSpread& units, int count, double tail) {
  return std::abs(units.mean) > half_width(units, count, tail);
}

std::vector<bool> holm(const std::vector<double>& p, double level) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] < p[b]; });
  std::vector<bool> rejected(p.size(), false);
  for (std::size_t i = 0; i < order.size() && p[order[i]] <= level / static_cast<double>(p.size() - i); ++i)
    rejected[order[i]] = true;
  return rejected;
}

}  // namespace precbench
