// Tests fit_age_law on simulated gaps with a known law, with and without noise.
#include "tools/analysis/age_law.h"

#include <cmath>
#include <random>

#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

constexpr double kAges[] = {0.3, 1, 3, 10, 30, 100};

/// Returns gaps of `trunks` trunks: each follows a power law whose exponent varies by `spread`, plus fork
/// noise.
std::vector<AgedGap> prices_of(int trunks, double scale, double exponent, double spread, double noise,
                               std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<AgedGap> gaps;
  for (int trunk = 1; trunk <= trunks; ++trunk) {
    const double own = exponent + spread * normal(random);
    for (const double age : kAges)
      gaps.push_back({trunk, age, scale * std::pow(age, own) + noise * normal(random)});
  }
  return gaps;
}

}  // namespace

TEST_CASE("fit_age_law: gaps on a power law return its exponent and scale", "[age]") {
  std::mt19937_64 random(1);
  for (const double exponent : {-0.5, 0.0, 0.25, 1.0}) {
    const auto law = fit_age_law(prices_of(3, 0.001, exponent, 0, 0, random));
    REQUIRE(law);
    CHECK(std::abs(law->exponent().mean - exponent) < 1e-4);
    CHECK(std::abs(law->at(1000).mean / (0.001 * std::pow(1000, exponent)) - 1) < 2e-3);
  }
}

TEST_CASE("fit_age_law: 95% intervals of exponent and gap cover the truth in 95% of noisy studies", "[age]") {
  constexpr int kStudies = 400;
  std::mt19937_64 random(2);
  int exponent_held = 0, price_held = 0, fitted = 0;
  for (int study = 0; study < kStudies; ++study) {
    const auto law = fit_age_law(prices_of(3, 0.001, 0.3, 0.05, 0.0001, random));
    if (!law) continue;
    ++fitted;
    const MeanWithInterval exponent = law->exponent(), gap = law->at(30);
    exponent_held += exponent.low <= 0.3 && 0.3 <= exponent.high;
    const double truth = 0.001 * std::pow(30, 0.3);
    price_held += gap.low <= truth && truth <= gap.high;
  }
  CHECK(fitted == kStudies);
  // 95% of 400 is 380, with a standard deviation of 4.4.
  CHECK(exponent_held >= 380 - 4 * 4.4);
  CHECK(price_held >= 380 - 4 * 4.4);
}

TEST_CASE("fit_age_law: too few trunks or ages or no power law returns null", "[age]") {
  std::mt19937_64 random(3);
  CHECK(!fit_age_law({}));
  CHECK(!fit_age_law(prices_of(1, 0.001, 0.3, 0, 0, random)));
  CHECK(!fit_age_law({{1, 1, 0.1}, {1, 20, 0.2}, {2, 1, 0.1}, {2, 20, 0.2}}));
  // Zero until the last age: steeper than any exponent in the search range.
  CHECK(!fit_age_law({{1, 1, 0}, {1, 2, 0}, {1, 20, 1}, {2, 1, 0}, {2, 2, 0}, {2, 20, 1}}));
  // Ages within a factor of ten.
  const auto spanning = [](double oldest) {
    return fit_age_law(
               {{1, 1, 0.1}, {1, 3, 0.2}, {1, oldest, 0.3}, {2, 1, 0.1}, {2, 3, 0.2}, {2, oldest, 0.3}})
        .has_value();
  };
  CHECK(!spanning(9.9));
  CHECK(spanning(10));
}
