// Known answers of the statistics.
#include "results/statistics.h"

#include <limits>

#include "tools/catch.h"

using namespace precbench;

TEST_CASE("quartiles interpolate as NumPy's do", "[statistics]") {
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

TEST_CASE("outliers are beyond three interquartile ranges", "[statistics]") {
  // q1 = 10.25, q3 = 12: the upper fence is 17.25.
  CHECK(outliers({10, 11, 12, 10, 12, 17.25}).empty());
  CHECK(outliers({10, 11, 12, 10, 12, 11, 30}) == std::vector<std::int64_t>{6});
  CHECK(outliers({-9, 11, 12, 10, 12, 11, 30}) == std::vector<std::int64_t>{0, 6});
  CHECK(outliers({}).empty());
}

TEST_CASE("the trailing mean takes a tenth, and five at least", "[statistics]") {
  std::vector<double> series(100, 9.0);
  for (std::size_t i = 90; i < 100; ++i) series[i] = 2.0;
  CHECK(trailing_mean(series) == 2.0);
  CHECK(trailing_mean({100, 1, 2, 3, 4, 5}) == 3.0);
  CHECK_FALSE(trailing_mean({1, 2, 3, 4}));
  series[95] = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(trailing_mean(series));
  series[95] = 2.0;
  series[10] = std::numeric_limits<double>::infinity();
  CHECK(trailing_mean(series) == 2.0);
}
