// Fits L = E + b / D^beta. See horizon_slope.h.
#include "tools/analysis/horizon_slope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/base/errors.h"
#include "tools/analysis/equal_loss.h"

namespace precbench {
namespace {

/// Number of block means that a stretch of a curve is reduced to. Means of blocks are independent where single
/// steps are not.
constexpr std::size_t kBlocks = 20;
constexpr std::size_t kFewestSteps = 2 * kBlocks;  ///< of a fitted stretch
/// Minimum number of points whose scatter about the fit gives its error.
constexpr std::size_t kFewestToScatter = 4;
constexpr double kLevel = 0.05;
/// Runs whose lengths differ by less count as equally long.
constexpr double kSmallestRatio = 1.25;
/// Largest ratio of the horizon to the tokens of the longest run without a warning.
constexpr double kFarExtrapolation = 10;

/// A loss at a number of tokens, with its standard error.
struct Point {
  double tokens = 0, loss = 0, error = 0;
};

/// A slope b of L against D^-beta, its standard error and the degrees of freedom of the latter.
struct Fit {
  double b = 0, error = 0, freedom = 1;
};

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Splits a stretch of a curve into at most kBlocks parts and returns their means.
std::vector<Point> block_means(const BaseRun& run, std::size_t begin, std::size_t end) {
  const std::size_t length = end - begin, blocks = std::min(kBlocks, length);
  std::vector<Point> points;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t from = begin + i * length / blocks, to = begin + (i + 1) * length / blocks;
    points.push_back({mean_of(std::span(run.tokens).subspan(from, to - from)),
                      mean_of(std::span(run.loss).subspan(from, to - from))});
  }
  return points;
}

/// Returns the least-squares fit of L = E + b D^-beta and its error: from the residuals, or for fewer than
/// kFewestToScatter points from the errors of the points, whose degrees of freedom are `point_freedom`.
Fit fit(const std::vector<Point>& points, double beta, double point_freedom) {
  std::vector<double> x;
  double mean_x = 0, mean_y = 0;
  for (const Point& p : points) {
    x.push_back(std::pow(p.tokens, -beta));
    mean_x += x.back() / static_cast<double>(points.size());
    mean_y += p.loss / static_cast<double>(points.size());
  }
  double sxx = 0, sxy = 0, from_errors = 0, residuals = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    sxx += (x[i] - mean_x) * (x[i] - mean_x);
    sxy += (x[i] - mean_x) * (points[i].loss - mean_y);
    from_errors += std::pow((x[i] - mean_x) * points[i].error, 2);
  }
  Fit result{sxy / sxx, std::sqrt(from_errors) / sxx, point_freedom};
  if (points.size() < kFewestToScatter) return result;
  for (std::size_t i = 0; i < points.size(); ++i)
    residuals += std::pow(points[i].loss - mean_y - result.b * (x[i] - mean_x), 2);
  result.freedom = static_cast<double>(points.size()) - 2;
  result.error = std::sqrt(residuals / result.freedom / sxx);
  return result;
}

MeanWithInterval slope_at(const Fit& fit, double beta, double horizon) {
  const double scale = beta * std::pow(horizon, -beta);
  const double half = student_t_quantile(1 - kLevel / 2, fit.freedom) * fit.error;
  return {scale * fit.b, scale * (fit.b - half), scale * (fit.b + half)};
}

/// Returns the mean loss of a run's last tenth.
Point end_of(const BaseRun& run) {
  const std::size_t length = run.loss.size(), window = std::max(kBlocks, length / 10);
  const std::vector<Point> blocks = block_means(run, length - window, length);
  std::vector<double> losses;
  double tokens = 0;
  for (const Point& p : blocks) {
    losses.push_back(p.loss);
    tokens += p.tokens / static_cast<double>(blocks.size());
  }
  const MeanAndSpread end = mean_and_spread(losses);
  return {tokens, end.mean, end.sd / std::sqrt(static_cast<double>(losses.size()))};
}

struct Stretch {
  std::size_t begin = 0, end = 0;
};

/// Returns the longest stretch at the run's highest learning rate.
Stretch constant_part(const std::vector<double>& rate) {
  const double highest = *std::max_element(rate.begin(), rate.end());
  Stretch longest, now;
  for (std::size_t i = 0; i < rate.size(); ++i) {
    if (rate[i] < 0.99 * highest) continue;
    if (now.end != i) now.begin = i;
    now.end = i + 1;
    if (now.end - now.begin > longest.end - longest.begin) longest = now;
  }
  return longest;
}

HorizonSlope slope_of_one(const BaseRun& run, double beta, double horizon) {
  HorizonSlope result;
  Stretch part{0, run.loss.size()};
  result.source = "run " + run.name;
  if (run.rate.empty()) {
    result.warnings.push_back(
        fmt::format("{} does not say its learning rate, which is taken as constant.", run.name));
  } else if (const Stretch constant = constant_part(run.rate);
             4 * (constant.end - constant.begin) >= run.rate.size()) {
    part = constant;
    result.source += ", its part at a constant learning rate";
  } else {
    result.warnings.push_back(fmt::format(
        "The learning rate of {} decays from early on: its slope also contains what the decay gains, so S and the "
        "break-even gap are too large. Runs of two lengths avoid this.",
        run.name));
  }
  // The second half of the tokens: the start follows no power law.
  const double half = run.tokens[part.end - 1] / 2;
  while (part.begin + 1 < part.end && run.tokens[part.begin] < half) ++part.begin;
  if (part.end - part.begin < kFewestSteps)
    throw InvalidInput(fmt::format("--base {}: {} steps are too few for a slope; it takes {}", run.name,
                                   part.end - part.begin, kFewestSteps));
  result.slope = slope_at(fit(block_means(run, part.begin, part.end), beta, 1), beta, horizon);
  return result;
}

HorizonSlope slope_of_lengths(const std::vector<BaseRun>& runs, double beta, double horizon) {
  std::vector<Point> ends;
  std::vector<std::string> lengths;
  for (const BaseRun& run : runs) {
    ends.push_back(end_of(run));
    lengths.push_back(token_words(run.tokens.back()));
  }
  HorizonSlope result;
  result.slope = slope_at(fit(ends, beta, static_cast<double>(kBlocks) - 1), beta, horizon);
  result.source = fmt::format("{} runs of {} tokens", runs.size(), fmt::join(lengths, " and "));
  if (runs.size() < kFewestToScatter)
    result.warnings.push_back(fmt::format(
        "The interval of {} runs does not contain what other seeds would change; {} runs would show it.",
        runs.size(), kFewestToScatter));
  return result;
}

/// Averages the slopes and the ends of their intervals, which is wider than the interval of the average.
HorizonSlope slope_of_equal_lengths(const std::vector<BaseRun>& runs, double beta, double horizon) {
  if (runs.size() == 1) return slope_of_one(runs.front(), beta, horizon);
  const double count = static_cast<double>(runs.size());
  HorizonSlope result;
  MeanWithInterval sum;
  for (const BaseRun& run : runs) {
    const HorizonSlope one = slope_of_one(run, beta, horizon);
    sum = {sum.mean + one.slope.mean, sum.low + one.slope.low, sum.high + one.slope.high};
    result.warnings.insert(result.warnings.end(), one.warnings.begin(), one.warnings.end());
  }
  result.slope = {sum.mean / count, sum.low / count, sum.high / count};
  result.source = fmt::format("{} runs of {} tokens", runs.size(), token_words(runs.front().tokens.back()));
  return result;
}

void check(const BaseRun& run) {
  if (run.loss.size() < kFewestSteps)
    throw InvalidInput(fmt::format("--base {}: {} steps are too few for a slope; it takes {}", run.name,
                                   run.loss.size(), kFewestSteps));
  const auto valid = [](double value) { return std::isfinite(value); };
  if (!std::all_of(run.loss.begin(), run.loss.end(), valid) || !(run.tokens.front() > 0) ||
      !std::is_sorted(run.tokens.begin(), run.tokens.end()) || !valid(run.tokens.back()) ||
      !std::all_of(run.rate.begin(), run.rate.end(), valid))
    throw InvalidInput(fmt::format("--base {}: needs ascending tokens and finite losses", run.name));
}

}  // namespace

HorizonSlope slope_of_law(const ScalingLaw& law, double horizon) {
  const double slope = law.slope(horizon);
  return {exactly(slope), fmt::format("law of {} ({})", law.name, law.source), {}};
}

HorizonSlope slope_of_runs(const std::vector<BaseRun>& runs, double horizon, const ScalingLaw& law) {
  if (runs.empty()) throw InvalidInput("--base: no run in it");
  double shortest = runs.front().tokens.back(), longest = shortest;
  for (const BaseRun& run : runs) {
    check(run);
    shortest = std::min(shortest, run.tokens.back());
    longest = std::max(longest, run.tokens.back());
  }
  HorizonSlope result = longest >= kSmallestRatio * shortest
                            ? slope_of_lengths(runs, law.beta, horizon)
                            : slope_of_equal_lengths(runs, law.beta, horizon);
  if (!(result.slope.low > 0))
    throw InvalidInput(
        fmt::format("--base: the loss does not fall significantly with tokens in {}", result.source));
  if (horizon > kFarExtrapolation * longest)
    result.warnings.push_back(
        fmt::format("S is extrapolated from {} to {} tokens with the exponent {} of {}.",
                    token_words(longest), token_words(horizon), law.beta, law.name));
  return result;
}

}  // namespace precbench
