// Fits one slope to the losses of all trunks. See steady.h.
#include "bench/study/steady.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Returns the change of the trunks' loss from step `from` to step `to`: slope times log2(to / from), with
/// its interval.
MeanWithInterval change_between(const std::vector<std::vector<double>>& losses, std::int64_t from,
                                std::int64_t to, double level) {
  const auto begin = static_cast<std::size_t>(from), end = static_cast<std::size_t>(to);
  const auto steps = static_cast<double>(end - begin);
  const auto doublings = [](std::size_t step) { return std::log2(static_cast<double>(step + 1)); };
  double mean_x = 0;
  for (std::size_t step = begin; step < end; ++step) mean_x += doublings(step) / steps;
  double xx = 0, xy = 0, yy = 0;
  for (const std::vector<double>& loss : losses) {
    double mean_y = 0;
    for (std::size_t step = begin; step < end; ++step) mean_y += loss[step] / steps;
    for (std::size_t step = begin; step < end; ++step) {
      const double x = doublings(step) - mean_x, y = loss[step] - mean_y;
      xx += x * x, xy += x * y, yy += y * y;
    }
  }
  const double slope = xy / xx;
  const double freedom = static_cast<double>(losses.size()) * (steps - 1) - 1;
  const double error = std::sqrt(std::fmax(0, yy - slope * xy) / freedom / xx);
  const double span = std::log2(static_cast<double>(to) / static_cast<double>(from));
  const double half = student_t_quantile(1 - level / 2, freedom) * error;
  return {slope * span, (slope - half) * span, (slope + half) * span};
}

}  // namespace

SteadyAge find_steady_age(const std::vector<std::vector<double>>& losses,
                          const std::vector<std::int64_t>& candidates, double level) {
  for (const std::vector<double>& loss : losses)
    for (const double value : loss)
      if (!std::isfinite(value)) throw InvalidInput("a trunk's loss is not finite, so it is never steady");
  SteadyAge found{candidates.back(), false, {}};
  for (const std::int64_t age : candidates) {
    if (age == candidates.back()) break;
    found.change = change_between(losses, age, candidates.back(), level);
    if (found.change.low > 0 || found.change.high < 0) continue;
    found.age = age, found.steady = true;
    break;
  }
  return found;
}

std::string describe(const SteadyAge& found, std::int64_t last) {
  const std::string change =
      fmt::format("{:+.4f} nats [{:+.4f}, {:+.4f}]", found.change.mean, found.change.low, found.change.high);
  if (found.steady)
    return fmt::format("BF16's loss is steady from step {} on: it moves by {} until step {}", found.age,
                       change, last);
  return fmt::format(
      "BF16's loss is still moving at the last saved step: by {} over the last half of {} steps. Forks begin after {}; "
      "a longer re-warming ([rewarm] most) may be steady",
      change, last, last);
}

}  // namespace precbench
