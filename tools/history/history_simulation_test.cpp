// Error rates of a history that is examined again every night, by simulation. The hidden test prints the table of README.md
// (tools/ci/rates_table.sh); the others check a part of it, and that they could fail.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "kernels/testing/catch.h"
#include "tools/history/change_points.h"
#include "tools/history/history.h"

namespace precbench {
namespace {

constexpr std::size_t kYear = 365;
/// Distance in runs at which a change counts as found.
constexpr std::size_t kNear = 3;

/// Noise of simulated nights around a constant level.
enum class Noise : std::uint8_t { student, slow_nights, student_slow, drift, boards, exchanged };

const char* name_of(Noise noise) {
  switch (noise) {
    case Noise::student:
      return "t(3)";
    case Noise::slow_nights:
      return "normal, slow nights";
    case Noise::student_slow:
      return "t(3), slow nights";
    case Noise::drift:
      return "AR(1) 0.5";
    case Noise::boards:
      return "t(3), slow nights, four boards";
    case Noise::exchanged:
      return "t(3), slow nights, a new board every 60 nights";
  }
  return "";
}

/// Portable normal and Student variables (Box and Muller).
class NightDice {
 public:
  explicit NightDice(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * 3.14159265358979323846 * uniform());
  }
  /// Student's t with three degrees of freedom, of standard deviation 1.
  double student() {
    double squares = 0;
    for (int i = 0; i < 3; ++i) squares += std::pow(normal(), 2);
    return normal() / std::sqrt(squares);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }

 private:
  std::mt19937_64 engine_;
};

struct Nights {
  std::vector<double> values;         ///< logarithms of step times
  std::vector<std::uint32_t> boards;  ///< of each night
};

/// Returns nights without a change. `deviation`: of a run on one board; boards differ by 1%.
Nights simulated_nights(Noise noise, double deviation, std::size_t count, NightDice& dice) {
  constexpr double kSlow = 0.02, kSlowShare = 0.05, kBoards = 0.01;
  Nights nights{std::vector<double>(count), std::vector<std::uint32_t>(count, 0)};
  std::vector<double> levels(8);
  for (double& level : levels) level = kBoards * dice.normal();
  double drift = dice.normal();
  for (std::size_t i = 0; i < count; ++i) {
    const bool normal = noise == Noise::slow_nights;
    drift = 0.5 * drift + std::sqrt(0.75) * dice.normal();
    double value = noise == Noise::drift ? drift : normal ? dice.normal() : dice.student();
    value *= deviation;
    if (noise != Noise::drift && noise != Noise::student && dice.uniform() < kSlowShare) value += kSlow;
    if (noise == Noise::boards) nights.boards[i] = static_cast<std::uint32_t>(dice.below(4));
    if (noise == Noise::exchanged) nights.boards[i] = static_cast<std::uint32_t>(i / 60);
    if (noise == Noise::boards || noise == Noise::exchanged) value += levels[nights.boards[i]];
    nights.values[i] = value;
  }
  return nights;
}

/// Returns the changes that are seen after the first `count` nights. Parts between exchanges of all boards are examined
/// apart, as judge_history() does.
std::vector<ChangePoint> seen(const Nights& nights, std::size_t count, const ChangeRules& rules) {
  std::vector<ChangePoint> all;
  std::set<std::uint32_t> later(nights.boards.begin(),
                                nights.boards.begin() + static_cast<std::ptrdiff_t>(count));
  const bool exchanged = later.size() > 4;  // numbers ascend then
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= count; ++i) {
    const bool ends = i == count || (exchanged && nights.boards[i] != nights.boards[i - 1]);
    if (!ends) continue;
    if (i - begin >= kFewestNights)
      for (ChangePoint point : change_points(std::span(nights.values).subspan(begin, i - begin),
                                             std::span(nights.boards).subspan(begin, i - begin), rules)) {
        point.at += begin;
        all.push_back(point);
      }
    begin = i;
  }
  return all;
}

/// Returns the number of series with at least one change in any examination, nightly over `nights` nights.
int alarms(Noise noise, double deviation, int series, std::size_t nights, const ChangeRules& rules,
           NightDice& dice) {
  int count = 0;
  for (int i = 0; i < series; ++i) {
    const Nights simulated = simulated_nights(noise, deviation, nights, dice);
    for (std::size_t n = kFewestNights; n <= nights; ++n)
      if (!seen(simulated, n, rules).empty()) {
        ++count;
        break;
      }
  }
  return count;
}

/// Numbers of planted changes.
struct Found {
  int in_10 = 0, in_30 = 0;  ///< named within so many nights
  int exact = 0;             ///< of in_30, named at the very night
  int covered = 0;           ///< of in_30, whose interval has the planted change
};

/// Plants a change in a random night of [first, first + spread) and examines every night after it until it is named.
Found planted(Noise noise, double deviation, double change, int series, std::size_t first, std::size_t spread,
              NightDice& dice, const ChangeRules& rules = {}) {
  Found found;
  for (int i = 0; i < series; ++i) {
    const std::size_t at = first + dice.below(spread);
    Nights nights = simulated_nights(noise, deviation, at + 30, dice);
    for (std::size_t n = at; n < nights.values.size(); ++n) nights.values[n] += std::log1p(change);
    for (std::size_t after = 1; after <= 30; ++after) {
      const std::vector<ChangePoint> points = seen(nights, at + after, rules);
      const auto named = std::find_if(points.begin(), points.end(), [&](const ChangePoint& point) {
        return std::max(point.at, at) - std::min(point.at, at) <= kNear && point.shift.change > 0;
      });
      if (named == points.end()) continue;
      ++found.in_30;
      found.in_10 += after <= 10;
      found.exact += named->at == at;
      found.covered += named->shift.low <= change && named->shift.high >= change;
      break;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("history simulation: nightly examination of unchanged cases gives no alarm",
          "[history][simulation]") {
  NightDice dice(11);
  for (const double deviation : {0.0042, 0.01})
    for (const Noise noise :
         {Noise::student, Noise::slow_nights, Noise::student_slow, Noise::drift, Noise::boards}) {
      CAPTURE(deviation, name_of(noise));
      CHECK(alarms(noise, deviation, 3, noise == Noise::drift ? 120 : kYear, {}, dice) == 0);
    }
}

TEST_CASE("history simulation: weaker rules give alarms in the same series", "[history][simulation]") {
  // The positive control of the test above: size, deviation and significance are each needed.
  const auto with = [](auto change) {
    ChangeRules rules;
    change(rules);
    NightDice dice(12);
    return alarms(Noise::drift, 0.01, 6, 150, rules, dice);
  };
  CHECK(with([](ChangeRules&) {}) == 0);
  CHECK(with([](ChangeRules& rules) { rules.deviations = 0, rules.least = 0.005; }) > 2);
  CHECK(with([](ChangeRules& rules) { rules.deviations = 1; }) > 0);
}

TEST_CASE("history simulation: a step of 2% is named within 10 nights in 90%", "[history][simulation]") {
  NightDice dice(13);
  constexpr int kSeries = 40;
  const Found usual = planted(Noise::student_slow, 0.0042, 0.02, kSeries, 60, 240, dice);
  CAPTURE(usual.in_10, usual.in_30, usual.exact, usual.covered);
  CHECK(usual.in_10 * 10 >= kSeries * 9);
  CHECK(usual.covered * 10 >= usual.in_30 * 8);
  CHECK(usual.exact * 2 >= usual.in_30);
  // A young series names less, since it does not know its deviation well.
  const Found young = planted(Noise::student_slow, 0.0042, 0.02, kSeries, 30, 1, dice);
  CAPTURE(young.in_10, young.in_30);
  CHECK(young.in_10 * 10 >= kSeries * 7);
  CHECK(young.in_30 * 10 >= kSeries * 9);
  // Nothing is named where nothing was planted.
  CHECK(planted(Noise::student_slow, 0.0042, 0, kSeries, 60, 240, dice).in_30 == 0);
}

// Prints the table of README.md; minutes.
TEST_CASE("history simulation: table", "[.history-rates]") {
  constexpr int kAlarmSeries = 180, kPlanted = 200;
  std::puts(
      "| noise of a night | standard deviation | series-years | with a false alarm | +2% within 10 nights | within 30 | +5% "
      "within 10 |\n| --- | --- | --- | --- | --- | --- | --- |");
  const auto share = [](int count) { return fmt::format("{:.0f}%", 100.0 * count / kPlanted); };
  for (const double deviation : {0.0042, 0.01})
    for (const Noise noise : {Noise::student, Noise::slow_nights, Noise::student_slow, Noise::drift,
                              Noise::boards, Noise::exchanged}) {
      NightDice dice(static_cast<std::uint64_t>(noise) * 1000 +
                     static_cast<std::uint64_t>(deviation * 10000));
      const int false_alarms = alarms(noise, deviation, kAlarmSeries, kYear, {}, dice);
      // A board that is 60 nights old at most has too short a past for a change in a random night.
      const bool moving = noise == Noise::exchanged;
      const Found small = moving ? Found{} : planted(noise, deviation, 0.02, kPlanted, 60, 240, dice);
      const Found large = moving ? Found{} : planted(noise, deviation, 0.05, kPlanted, 60, 240, dice);
      std::puts(fmt::format("| {} | {:g}% | {} | {} | {} | {} | {} |", name_of(noise), 100 * deviation,
                            kAlarmSeries, false_alarms, moving ? "-" : share(small.in_10),
                            moving ? "-" : share(small.in_30), moving ? "-" : share(large.in_10))
                    .c_str());
      std::fflush(stdout);
      CHECK(false_alarms == 0);
      if (deviation < 0.005 && !moving) CHECK(small.in_10 * 10 >= kPlanted * 9);
    }
}

}  // namespace precbench
