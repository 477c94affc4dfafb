// Tests the definition of equivalence and the tests behind it.
#include "tools/analysis/equivalence.h"

#include <cmath>
#include <random>
#include <vector>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("equivalence_p: returns the larger of both one-sided p-values", "[equivalence]") {
  const std::vector<double> units = {0.1, 0.2, 0.6};
  // Student's t with 2 degrees of freedom: mean 0.3, standard error 0.1527525.
  CHECK(p_of_beyond(units, 0.5, +1) == Approx(student_t_cdf(-0.2 / 0.15275252316519466, 2)));
  CHECK(p_of_beyond(units, 0.5, -1) == Approx(student_t_cdf(-0.8 / 0.15275252316519466, 2)));
  CHECK(equivalence_p(units, 0.5) == p_of_beyond(units, 0.5, +1));
  CHECK(equivalence_p({-0.1, -0.2, -0.6}, 0.5) == equivalence_p(units, 0.5));
  CHECK(equivalence_p({0.25, 0.25, 0.25}, 0.5) == 0);
  CHECK(equivalence_p({0.5, 0.5, 0.5}, 0.5) == 1);
  CHECK(equivalence_p({0.1, NAN, 0.1}, 0.5) == 1);
}

TEST_CASE("would_be_equivalent: at the actual number of units it agrees with the p-value", "[equivalence]") {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(0.2, 0.2);
  int both[2] = {0, 0};
  for (int i = 0; i < 500; ++i) {
    const std::vector<double> units = {normal(random), normal(random), normal(random), normal(random)};
    const bool equivalent = equivalence_p(units, 0.5) <= 0.05;
    CHECK(would_be_equivalent(mean_and_spread(units), 4, 0.5, 0.05) == equivalent);
    ++both[equivalent];
  }
  CHECK((both[0] > 50 && both[1] > 50));
}

TEST_CASE("is_equivalent: needs kFewestUnits units and both tests", "[equivalence]") {
  CHECK(is_equivalent({0.1, 0.1, 0.1}, 0.5, 0.05));
  CHECK_FALSE(is_equivalent({0.1, 0.1}, 0.5, 0.05));
  CHECK_FALSE(is_equivalent({0.1, 0.2, 0.6}, 0.5, 0.05));
}

TEST_CASE("would_differ: agrees with the 95% interval of the mean", "[equivalence]") {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(0.3, 0.2);
  int both[2] = {0, 0};
  for (int i = 0; i < 500; ++i) {
    const std::vector<double> units = {normal(random), normal(random), normal(random)};
    const MeanWithInterval interval = *mean_with_interval(units);
    const bool differs = interval.low > 0 || interval.high < 0;
    CHECK(would_differ(mean_and_spread(units), 3, 0.025) == differs);
    ++both[differs];
  }
  CHECK((both[0] > 50 && both[1] > 50));
}
