// Change points of series whose changes are known.
#include "tools/history/change_points.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

/// Returns uniform noise of a standard deviation of 0.3%, as logarithms.
std::vector<double> quiet_runs(std::size_t count, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<double> values(count);
  for (double& value : values) value = 0.0104 * (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
  return values;
}

void add_step(std::vector<double>& values, std::size_t from, double change) {
  for (std::size_t i = from; i < values.size(); ++i) values[i] += std::log1p(change);
}

std::vector<std::size_t> places(const std::vector<ChangePoint>& points) {
  std::vector<std::size_t> found;
  for (const ChangePoint& point : points) found.push_back(point.at);
  return found;
}

std::vector<std::size_t> places(const std::vector<double>& values, const ChangeRules& rules = {}) {
  return places(change_points(values, std::vector<std::uint32_t>(values.size(), 0), rules));
}

}  // namespace

TEST_CASE("change points: steps are found where they are, with their size", "[history]") {
  std::vector<double> values = quiet_runs(120);
  CHECK(places(values).empty());
  add_step(values, 50, 0.03), add_step(values, 90, -0.02);
  const auto points = change_points(values, std::vector<std::uint32_t>(120, 7));
  CHECK(places(points) == std::vector<std::size_t>{50, 90});
  CHECK(points[0].shift.change == Approx(0.03).margin(0.003));
  CHECK(points[0].shift.low < 0.03);
  CHECK(points[0].shift.high > 0.03);
  CHECK(points[0].shift.low > 0.02);
  CHECK(points[1].shift.change == Approx(-0.02).margin(0.003));
}

TEST_CASE("change points: stairs do not hide each other", "[history]") {
  std::vector<double> values = quiet_runs(160);
  for (const std::size_t at : {40u, 80u, 120u}) add_step(values, at, 0.04);
  CHECK(places(values) == std::vector<std::size_t>{40, 80, 120});
}

TEST_CASE("change points: what is too small, too short or no step is none", "[history]") {
  std::vector<double> values = quiet_runs(80);
  add_step(values, 40, 0.01);
  CHECK(places(values).empty());
  CHECK(places(values, {.least = 0.005, .deviations = 1}).size() == 1);

  std::vector<double> few = quiet_runs(80);
  add_step(few, 76, 0.05);  // four runs
  CHECK(places(few).empty());

  std::vector<double> spike = quiet_runs(80);
  for (const std::size_t at : {10u, 30u, 31u, 50u, 70u}) spike[at] += 0.2;
  CHECK(places(spike).empty());
}

TEST_CASE("change points: short, constant and huge series are examined without harm", "[history]") {
  for (std::size_t count = 0; count < 12; ++count) CHECK(places(std::vector<double>(count, 1.5)).empty());
  std::vector<double> constant(40, 2.0);
  CHECK(places(constant).empty());
  add_step(constant, 20, 0.1);
  CHECK(places(constant) == std::vector<std::size_t>{20});
  std::vector<double> huge(40, -300.0);
  for (std::size_t i = 20; i < huge.size(); ++i) huge[i] = 300;
  CHECK(places(huge) == std::vector<std::size_t>{20});
}

TEST_CASE("change points: runs are compared on one board only", "[history]") {
  // Another board at the same time as a step of 3%: nothing can be said.
  std::vector<double> values = quiet_runs(80);
  add_step(values, 40, 0.03);
  std::vector<std::uint32_t> boards(80, 1);
  std::fill(boards.begin() + 40, boards.end(), 2);
  CHECK(change_points(values, boards).empty());
  CHECK(shift_at(values, boards, 40).change == 0);

  // Boards that differ by 3% and take turns hide a step of 2% from whoever ignores them.
  std::vector<double> turns = quiet_runs(80);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    boards[i] = i % 2;
    if (i % 2 == 1) turns[i] += 0.03;
  }
  CHECK(change_points(turns, boards).empty());
  add_step(turns, 40, 0.02);
  CHECK(places(change_points(turns, boards)) == std::vector<std::size_t>{40});
  CHECK(places(turns).empty());
  CHECK(change_points(turns, boards)[0].shift.change == Approx(0.02).margin(0.003));
}

TEST_CASE("change points: a young series does not know its deviation", "[history]") {
  std::vector<double> young = quiet_runs(24), old = quiet_runs(60);
  add_step(young, 12, 0.02), add_step(old, 30, 0.02);
  CHECK(places(young).empty());
  CHECK(places(old) == std::vector<std::size_t>{30});
  add_step(young, 12, 0.05);
  CHECK(places(young) == std::vector<std::size_t>{12});
}

TEST_CASE("change points: correlated nights need eight runs on either side", "[history]") {
  const auto with_last = [](std::size_t runs) {
    std::vector<double> values = quiet_runs(100);
    for (std::size_t i = 1; i < values.size(); ++i) values[i] += 0.6 * values[i - 1];
    add_step(values, values.size() - runs, 0.06);
    return places(values);
  };
  CHECK(with_last(6).empty());
  CHECK(with_last(10) == std::vector<std::size_t>{90});
}

TEST_CASE("change points: examinations are reproducible", "[history]") {
  std::vector<double> values = quiet_runs(90, 5);
  add_step(values, 60, 0.018);
  const auto once = places(values);
  for (int i = 0; i < 3; ++i) CHECK(places(values) == once);
}

TEST_CASE("change points: neither slow nights nor other changes widen the deviation", "[history]") {
  std::vector<double> values = quiet_runs(100);
  const std::vector<std::uint32_t> boards(100, 0);
  const double usual = run_deviation(values, boards, {});
  CHECK(usual == Approx(0.003).margin(0.0015));
  for (const std::size_t at : {10u, 30u, 50u}) values[at] += 0.1;
  add_step(values, 60, 0.05);
  CHECK(run_deviation(values, boards, {60}) == Approx(usual).epsilon(0.3));
}

}  // namespace precbench
