// Known results of the statistics.
#include "results/record/statistics.h"

#include <cmath>
#include <limits>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("sample_statistics: quartiles interpolate like NumPy", "[statistics]") {
  const auto s = sample_statistics({4, 1, 3, 2});
  REQUIRE(s);
  CHECK(s->min == 1);
  CHECK(s->q1 == 1.75);
  CHECK(s->median == 2.5);
  CHECK(s->q3 == 3.25);
  CHECK(s->iqr() == 1.5);
  const auto one = sample_statistics({7});
  REQUIRE(one);
  CHECK(one->median == 7);
  CHECK(one->iqr() == 0);
  CHECK_FALSE(sample_statistics({}));
}

TEST_CASE("relative_noise: equals the relative standard deviation of normal samples", "[statistics]") {
  CHECK(std::fabs(relative_noise({0, 100, 100, 101.349}) - 0.01) < 1e-12);
}

TEST_CASE("outliers: samples beyond three IQR outside the quartiles are found", "[statistics]") {
  // q1 = 10.25, q3 = 12: the upper fence is 17.25.
  CHECK(outliers({10, 11, 12, 10, 12, 17.25}).empty());
  CHECK(outliers({10, 11, 12, 10, 12, 11, 30}) == std::vector<std::int64_t>{6});
  CHECK(outliers({-9, 11, 12, 10, 12, 11, 30}) == std::vector<std::int64_t>{0, 6});
  CHECK(outliers({}).empty());
}

TEST_CASE("trailing_mean: averages the last tenth and at least five entries", "[statistics]") {
  std::vector<double> series(100, 9.0);
  for (std::size_t i = 90; i < 100; ++i) series[i] = 2.0;
  CHECK(trailing_mean(series) == 2.0);
  CHECK(trailing_mean(std::vector<double>{100, 1, 2, 3, 4, 5}) == 3.0);
  CHECK_FALSE(trailing_mean(std::vector<double>{1, 2, 3, 4}));
  series[95] = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(trailing_mean(series));
  series[95] = 2.0;
  series[10] = std::numeric_limits<double>::infinity();
  CHECK(trailing_mean(series) == 2.0);
}

TEST_CASE("student_t_quantile: matches printed tables", "[statistics]") {
  const auto close = [](double a, double b) { return std::abs(a - b) < 5e-4 * std::abs(b); };
  CHECK(close(student_t_quantile(0.95, 1), 6.3138));
  CHECK(close(student_t_quantile(0.975, 2), 4.3027));
  CHECK(close(student_t_quantile(0.95, 2), 2.9200));
  CHECK(close(student_t_quantile(0.975, 9), 2.2622));
  CHECK(close(student_t_quantile(0.995, 30), 2.7500));
  CHECK(close(student_t_quantile(0.975, 1e6), 1.95997));
  CHECK(std::abs(student_t_quantile(0.025, 4) + student_t_quantile(0.975, 4)) < 1e-12);
  CHECK(std::abs(student_t_quantile(0.5, 3)) < 1e-12);
}

TEST_CASE("student_t_cdf: matches the closed forms for one and two degrees of freedom", "[statistics]") {
  const double pi = std::acos(-1.0);
  for (const double t : {-40.0, -2.0, -0.1, 0.0, 0.7, 3.0, 1e3}) {
    CHECK(std::abs(student_t_cdf(t, 1) - (0.5 + std::atan(t) / pi)) < 1e-12);
    CHECK(std::abs(student_t_cdf(t, 2) - (0.5 + t / (2 * std::sqrt(2 + t * t)))) < 1e-12);
  }
  for (const double p : {0.001, 0.3, 0.9})
    CHECK(std::abs(student_t_cdf(student_t_quantile(p, 5), 5) - p) < 1e-12);
}

TEST_CASE("mean_and_spread: returns the sample standard deviation", "[statistics]") {
  const MeanAndSpread s = mean_and_spread({1, 2, 3, 6});
  CHECK(s.mean == 3);
  CHECK(std::abs(s.sd * s.sd - 14.0 / 3) < 1e-12);
  CHECK(mean_and_spread({7}).sd == 0);
}
