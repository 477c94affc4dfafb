// Rank sums, permutations and shifts. See change_points.h.
#include "tools/history/change_points.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace precbench {
namespace {

using Values = std::span<const double>;
using Boards = std::span<const std::uint32_t>;

/// Scale of the median absolute deviation that makes it the standard deviation of normal values.
constexpr double kNormalMad = 1.4826;
/// Distance in runs of the differences whose spread is the deviation of a drifting series: night-to-night correlation
/// has faded at it.
constexpr std::size_t kFarRuns = 5;
/// Fewest such differences that estimate a deviation.
constexpr std::size_t kFewestFar = 15;
/// Runs below which a series does not show its own deviation: the largest one that README.md simulates is taken.
constexpr std::size_t kYoungRuns = 30;
constexpr double kYoungDeviation = 0.01;
/// Relative standard error of the robust deviation of normal runs, times the root of their number.
constexpr double kDeviationError = 1.16;
/// Correlation of neighbouring nights from which a side needs more runs, and their number.
constexpr double kMuchCorrelation = 0.25;
constexpr double kMostCorrelation = 0.8;
constexpr std::size_t kFewestCorrelated = 8;
/// Most runs by which the place of a change is corrected.
constexpr std::size_t kMostMoved = 10;
/// Shortest part of a segment that is examined on its own.
constexpr std::size_t kFewestInside = 20;
/// Most runs of a side that enter a shift: further ones narrow the interval by less than its last digit.
constexpr std::size_t kMostShiftRuns = 400;

double median_of(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// Maps boards to 0, 1, ... in order of appearance.
std::vector<std::size_t> dense(Boards boards, std::size_t& count) {
  std::map<std::uint32_t, std::size_t> known;
  std::vector<std::size_t> numbers;
  numbers.reserve(boards.size());
  for (const std::uint32_t board : boards)
    numbers.push_back(known.try_emplace(board, known.size()).first->second);
  count = known.size();
  return numbers;
}

/// The rank sums of all splits of one segment, and of its permutations.
class Segment {
 public:
  Segment(Values values, Boards boards, std::size_t fewest)
      : fewest_(fewest), board_(dense(boards, count_)), ranks_(values.size()), strata_(count_) {
    for (std::size_t i = 0; i < values.size(); ++i) strata_[board_[i]].runs.push_back(i);
    for (Stratum& stratum : strata_) rank(values, stratum);
  }

  struct Best {
    double statistic = 0;  ///< 0: no split is possible
    std::size_t at = 0;
  };

  /// Returns the split with the largest standardized rank sum.
  Best best() const {
    Best found;
    std::vector<std::size_t> left(count_, 0);
    // Sums over the boards that have runs on both sides.
    double sum = 0, variance = 0;
    std::size_t left_runs = 0, right_runs = 0;
    for (std::size_t i = 0; i + 1 < ranks_.size(); ++i) {
      const std::size_t b = board_[i];
      const Stratum& stratum = strata_[b];
      const std::size_t n = stratum.runs.size(), before = left[b], after = ++left[b];
      sum += ranks_[i];
      variance += stratum.variance(after) - stratum.variance(before);
      if (before > 0) left_runs -= before, right_runs -= n - before;
      if (after < n) left_runs += after, right_runs += n - after;
      if (left_runs < fewest_ || right_runs < fewest_ || variance <= kNoVariance) continue;
      const double statistic = std::abs(sum) / std::sqrt(variance);
      if (statistic > found.statistic) found = {statistic, i + 1};
    }
    return found;
  }

  /// Permutes the values within the boards.
  void shuffle(std::mt19937_64& random) {
    for (const Stratum& stratum : strata_)
      for (std::size_t i = stratum.runs.size(); i > 1; --i)
        std::swap(ranks_[stratum.runs[i - 1]], ranks_[stratum.runs[random() % i]]);
  }

 private:
  /// Rounding of a sum of variances; all values of a board may be equal.
  static constexpr double kNoVariance = 1e-9;

  /// The runs of one board.
  struct Stratum {
    std::vector<std::size_t> runs{};
    double unit = 0;  ///< variance of the weighted rank sum, over m (n - m)

    /// Returns the variance of the weighted rank sum of `m` runs.
    double variance(std::size_t m) const { return unit * static_cast<double>(m * (runs.size() - m)); }
  };

  /// Fills in the weighted ranks of a board, centred, so that their sum over all its runs is zero.
  void rank(Values values, Stratum& stratum) {
    const std::size_t n = stratum.runs.size();
    std::vector<std::size_t> order = stratum.runs;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
    const double centre = (static_cast<double>(n) + 1) / 2, weight = 1 / (static_cast<double>(n) + 1);
    double squares = 0;
    for (std::size_t i = 0; i < n;) {
      std::size_t end = i;
      while (end < n && values[order[end]] == values[order[i]]) ++end;
      const double centred = weight * ((static_cast<double>(i + end) + 1) / 2 - centre);
      for (; i < end; ++i) ranks_[order[i]] = centred, squares += centred * centred;
    }
    const double count = static_cast<double>(n);
    stratum.unit = n < 2 ? 0 : squares / (count * (count - 1));
  }

  std::size_t fewest_, count_ = 0;
  std::vector<std::size_t> board_;
  std::vector<double> ranks_;
  std::vector<Stratum> strata_;
};

/// Returns true if at most `level` of the permutations reach the statistic. Stops as soon as that is decided: an
/// unchanged series after a few permutations.
bool is_significant(Segment& segment, double statistic, const ChangeRules& rules) {
  std::mt19937_64 random(rules.seed);
  const auto permutations = static_cast<std::size_t>(std::ceil(1 / rules.level)) - 1;
  const double allowed = rules.level * static_cast<double>(permutations + 1);
  double reached = 1;  // the series itself
  for (std::size_t i = 0; i < permutations && reached <= allowed; ++i) {
    segment.shuffle(random);
    if (segment.best().statistic >= statistic) ++reached;
  }
  return reached <= allowed;
}

/// Values of one board on both sides of a change.
struct Sides {
  std::vector<double> before{}, after{};
};

/// Returns the boards that have runs on both sides of `at` within [begin, end).
std::vector<Sides> comparable(Values values, Boards boards, std::size_t begin, std::size_t at,
                              std::size_t end) {
  std::map<std::uint32_t, Sides> by_board;
  for (std::size_t i = begin; i < end; ++i) {
    Sides& sides = by_board[boards[i]];
    (i < at ? sides.before : sides.after).push_back(values[i]);
  }
  std::vector<Sides> found;
  for (auto& [board, sides] : by_board)
    if (!sides.before.empty() && !sides.after.empty()) found.push_back(std::move(sides));
  return found;
}

/// Returns the change of medians, a mean over the boards weighted by what each can tell.
double median_change(Values values, Boards boards, std::size_t begin, std::size_t at, std::size_t end) {
  double sum = 0, weights = 0;
  for (Sides& sides : comparable(values, boards, begin, at, end)) {
    const auto before = static_cast<double>(sides.before.size()),
               after = static_cast<double>(sides.after.size());
    const double weight = before * after / (before + after);
    sum += weight * (median_of(sides.after) - median_of(sides.before));
    weights += weight;
  }
  return weights > 0 ? sum / weights : 0;
}

/// Returns the robust standard deviation of a run from differences of runs kFarRuns apart on one board, which changes of
/// the level hardly touch; 0 for too few.
double far_deviation(Values values, Boards boards) {
  std::map<std::uint32_t, std::vector<double>> by_board;
  for (std::size_t i = 0; i < values.size(); ++i) by_board[boards[i]].push_back(values[i]);
  std::vector<double> far;
  for (const auto& [board, runs] : by_board)
    for (std::size_t i = kFarRuns; i < runs.size(); ++i)
      far.push_back(std::abs(runs[i] - runs[i - kFarRuns]));
  return far.size() < kFewestFar ? 0 : kNormalMad * median_of(far) / std::sqrt(2.0);
}

/// Returns the best split of [begin, end) if it is significant; `begin` if not, and if the change is so small that it would
/// not stay: permutations of a drifting series, in which many small changes are significant, would take long.
std::size_t significant_split(Values values, Boards boards, std::size_t begin, std::size_t end,
                              const ChangeRules& rules) {
  Segment segment(values.subspan(begin, end - begin), boards.subspan(begin, end - begin), rules.fewest_runs);
  const Segment::Best best = segment.best();
  if (best.statistic == 0) return begin;
  const std::size_t at = begin + best.at;
  if (std::abs(median_change(values, boards, begin, at, end)) < rules.least / 2) return begin;
  return is_significant(segment, best.statistic, rules) ? at : begin;
}

/// Returns a significant split of [begin, end), else of its halves, quarters and so on, which overlap by half: a level that
/// came back hides both of its changes from the whole. `begin` if there is none.
std::size_t find_split(Values values, Boards boards, std::size_t begin, std::size_t end,
                       const ChangeRules& rules) {
  for (std::size_t length = end - begin;; length /= 2) {
    if (length < end - begin && length < kFewestInside) return begin;
    for (std::size_t stop = end; stop >= begin + length;
         stop -= length / 2)  // the newest runs are in a part of each length
      if (const std::size_t at = significant_split(values, boards, stop - length, stop, rules);
          at != stop - length)
        return at;
  }
}

/// Adds the significant splits of [begin, end), in order, whatever their size.
void split(Values values, Boards boards, std::size_t begin, std::size_t end, const ChangeRules& rules,
           std::vector<std::size_t>& found) {
  if (end - begin < 2 * rules.fewest_runs) return;
  const std::size_t at = find_split(values, boards, begin, end, rules);
  if (at == begin) return;
  split(values, boards, begin, at, rules, found);
  found.push_back(at);
  split(values, boards, at, end, rules, found);
}

/// Returns the values minus the level of their board between the changes.
std::vector<double> residuals(Values values, Boards boards, const std::vector<std::size_t>& changes) {
  std::vector<double> left(values.begin(), values.end());
  std::size_t begin = 0;
  for (std::size_t part = 0; part <= changes.size(); ++part) {
    const std::size_t end = part < changes.size() ? changes[part] : values.size();
    std::map<std::uint32_t, std::vector<double>> by_board;
    for (std::size_t i = begin; i < end; ++i) by_board[boards[i]].push_back(values[i]);
    std::map<std::uint32_t, double> levels;
    for (auto& [board, runs] : by_board) levels[board] = median_of(runs);
    for (std::size_t i = begin; i < end; ++i) left[i] -= levels[boards[i]];
    begin = end;
  }
  return left;
}

/// Returns the correlation of neighbouring residuals, from 0 to kMostCorrelation.
double autocorrelation(const std::vector<double>& residual) {
  double products = 0, squares = 0;
  for (std::size_t i = 0; i < residual.size(); ++i) {
    squares += residual[i] * residual[i];
    if (i > 0) products += residual[i] * residual[i - 1];
  }
  return squares > 0 ? std::clamp(products / squares, 0.0, kMostCorrelation) : 0;
}

/// Returns the boundary near `at` at which the runs of [begin, end) are nearest to the levels before and after it. Ranks
/// find that there is a change, but draw its place towards the middle: the runs next to it that happen to be the slowest
/// of the fast ones count as slow.
std::size_t refined(Values values, Boards boards, std::size_t begin, std::size_t at, std::size_t end,
                    const ChangeRules& rules) {
  const std::size_t first = std::max(begin + rules.fewest_runs, at - std::min(at, kMostMoved));
  const std::size_t last = std::min(end - rules.fewest_runs, at + kMostMoved);
  std::map<std::uint32_t, Sides> by_board;
  for (std::size_t i = begin; i < end; ++i) {
    Sides& sides = by_board[boards[i]];
    (i < at ? sides.before : sides.after).push_back(values[i]);
  }
  struct Levels {
    double before, after;
  };
  std::map<std::uint32_t, Levels> levels;
  const double change = median_change(values, boards, begin, at, end);
  for (auto& [board, sides] : by_board) {
    const bool none_before = sides.before.empty(), none_after = sides.after.empty();
    const double before = none_before ? median_of(sides.after) - change : median_of(sides.before);
    levels[board] = {before, none_after ? before + change : median_of(sides.after)};
  }
  // Sums of distances relative to the boundary at `first`.
  double distance = 0, least = 0;
  std::size_t best = first;
  for (std::size_t i = first; i < last; ++i) {
    const Levels& level = levels[boards[i]];
    distance += std::abs(values[i] - level.before) - std::abs(values[i] - level.after);
    if (distance < least) least = distance, best = i + 1;
  }
  return first <= last ? best : at;
}

/// Keeps at most kMostShiftRuns values, evenly spaced.
void thin(std::vector<double>& values) {
  if (values.size() <= kMostShiftRuns) return;
  std::vector<double> kept;
  for (std::size_t i = 0; i < kMostShiftRuns; ++i) kept.push_back(values[i * values.size() / kMostShiftRuns]);
  values = std::move(kept);
}

/// Returns the shift at `at` of the runs in [begin, end).
Shift shift_within(Values values, Boards boards, std::size_t begin, std::size_t at, std::size_t end) {
  std::vector<double> differences;
  double variance = 0;  // of the number of differences below the true shift
  for (Sides& sides : comparable(values, boards, begin, at, end)) {
    thin(sides.before), thin(sides.after);
    for (const double before : sides.before)
      for (const double after : sides.after) differences.push_back(after - before);
    const auto m = static_cast<double>(sides.before.size()), n = static_cast<double>(sides.after.size());
    variance += m * n * (m + n + 1) / 12;
  }
  if (differences.empty()) return {};
  const double correlation = autocorrelation(
      residuals(values.subspan(begin, end - begin), boards.subspan(begin, end - begin), {at - begin}));
  variance *= (1 + correlation) / (1 - correlation);
  std::sort(differences.begin(), differences.end());
  constexpr double kWidth = 1.96;  // 95% of a normal distribution
  const auto count = static_cast<double>(differences.size());
  const auto low =
      static_cast<std::size_t>(std::max(0.0, std::floor(count / 2 - kWidth * std::sqrt(variance))));
  const auto fraction = [](double logarithm) { return std::expm1(logarithm); };
  return {fraction(median_of(differences)), fraction(differences[std::min(low, differences.size() - 1)]),
          fraction(differences[differences.size() - 1 - std::min(low, differences.size() - 1)])};
}

/// Bounds that a change must meet in a series with other changes.
struct Bounds {
  double size;         ///< smallest change
  std::size_t fewest;  ///< runs that each side must have
};

/// Returns the bounds. Deviation and correlation count with the standard errors of their estimates, and a few correlated
/// nights may all be slow.
Bounds bounds_of(Values values, Boards boards, const std::vector<std::size_t>& changes,
                 const ChangeRules& rules) {
  const auto runs = static_cast<double>(values.size());
  const double correlation =
      std::min(kMostCorrelation, autocorrelation(residuals(values, boards, changes)) + 1 / std::sqrt(runs));
  const double error = kDeviationError * std::sqrt((1 + correlation) / (1 - correlation) / runs);
  double deviation = run_deviation(values, boards, changes) * (1 + error);
  if (values.size() < kYoungRuns) deviation = std::max(deviation, kYoungDeviation);
  const std::size_t fewest = correlation > kMuchCorrelation ? kFewestCorrelated : 0;
  return {std::max(rules.least, rules.deviations * deviation), std::max(rules.fewest_runs, fewest)};
}

}  // namespace

double run_deviation(std::span<const double> values, std::span<const std::uint32_t> boards,
                     const std::vector<std::size_t>& changes) {
  std::vector<double> spread = residuals(values, boards, changes);
  for (double& one : spread) one = std::abs(one);
  const auto count = static_cast<double>(values.size()), levels = static_cast<double>(changes.size() + 1);
  const double around = kNormalMad * median_of(spread) * std::sqrt(count / std::max(1.0, count - levels));
  // Levels follow a drifting series, whose residuals are then too small. Differences of distant runs do not.
  return std::max(around, far_deviation(values, boards));
}

Shift shift_at(std::span<const double> values, std::span<const std::uint32_t> boards, std::size_t at) {
  return shift_within(values, boards, 0, at, values.size());
}

std::vector<ChangePoint> change_points(std::span<const double> values, std::span<const std::uint32_t> boards,
                                       const ChangeRules& rules) {
  std::vector<std::size_t> found;
  ChangeRules for_splits = rules;
  for_splits.least = std::max(rules.least, rules.deviations * far_deviation(values, boards));
  split(values, boards, 0, values.size(), for_splits, found);
  while (!found.empty()) {
    const Bounds bounds = bounds_of(values, boards, found, rules);
    std::size_t smallest = 0;
    double size = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t begin = i == 0 ? 0 : found[i - 1],
                        end = i + 1 < found.size() ? found[i + 1] : values.size();
      const bool is_short = found[i] - begin < bounds.fewest || end - found[i] < bounds.fewest;
      const double change =
          is_short ? 0 : std::abs(std::expm1(median_change(values, boards, begin, found[i], end)));
      if (i == 0 || change < size) smallest = i, size = change;
    }
    if (size >= bounds.size) break;
    found.erase(found.begin() + static_cast<std::ptrdiff_t>(smallest));
  }
  for (std::size_t i = 0; i < found.size(); ++i)
    found[i] = refined(values, boards, i == 0 ? 0 : found[i - 1], found[i],
                       i + 1 < found.size() ? found[i + 1] : values.size(), rules);
  std::vector<ChangePoint> changes;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : found[i - 1],
                      end = i + 1 < found.size() ? found[i + 1] : values.size();
    changes.push_back({found[i], shift_within(values, boards, begin, found[i], end)});
  }
  return changes;
}

}  // namespace precbench
