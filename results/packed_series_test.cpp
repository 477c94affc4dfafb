// A packed series keeps its values to the last bit.
#include "results/packed_series.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "tools/testing/catch.h"

using namespace precbench;

namespace {

using Limits = std::numeric_limits<double>;
using FloatLimits = std::numeric_limits<float>;

void check_packed(const std::vector<double>& values) {
  PackedSeries series = values;
  series.pack();
  const std::vector<double> read = std::as_const(series);
  REQUIRE(read.size() == values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i]))
      CHECK(std::isnan(read[i]));
    else
      CHECK(std::bit_cast<std::uint64_t>(read[i]) == std::bit_cast<std::uint64_t>(values[i]));
  }
}

}  // namespace

TEST_CASE("PackedSeries: pack keeps every bit", "[packed_series]") {
  check_packed({});
  check_packed({5.571525573730469, 0.0, -0.0, 182.4986572265625});
  check_packed({1.8727449207534932, 1.0});
  check_packed({Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), 1.5});
  check_packed({double{FloatLimits::max()}, double{FloatLimits::denorm_min()}});
  check_packed({2.0 * double{FloatLimits::max()}, 1.0});
  check_packed({Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min()});
  check_packed({0.5 * double{FloatLimits::denorm_min()}, 1.0});
}

TEST_CASE("PackedSeries: a packed series can be changed", "[packed_series]") {
  PackedSeries series = {1.0, 2.0, 3.0};
  series.pack();
  series[1] = 0.1;  // not a float
  series.push_back(4);
  CHECK(series == PackedSeries{1.0, 0.1, 3.0, 4.0});
  series.pack();
  for (double& value : series) value *= 2;
  CHECK(series == std::vector<double>{2.0, 0.2, 6.0, 8.0});
  series.resize(1);
  series.pack();
  CHECK((series.size() == 1 && series.front() == 2 && series.back() == 2));
  series.clear();
  CHECK(series.empty());
}

TEST_CASE("PackedSeries: iterators are random access", "[packed_series]") {
  PackedSeries packed = {1.0, 2.0, 4.0, 8.0};
  packed.pack();
  const PackedSeries& series = packed;
  CHECK(std::vector<double>(series.begin() + 1, series.end() - 1) == std::vector<double>{2, 4});
  CHECK((series.end() - series.begin() == 4 && *(series.end() - 1) == 8 && series.begin()[2] == 4));
  double sum = 0;
  for (auto i = series.end(); i-- > series.begin();) sum = 2 * sum + *i;
  CHECK(sum == 8 * 8 + 4 * 4 + 2 * 2 + 1);
}
