// Tests token factors against the scaling law itself and against independently computed figures.
#include "tools/analysis/token_cost.h"

#include <cmath>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("ScalingLaw::slope: is the derivative of the loss by ln(tokens) for every model size", "[tokens]") {
  const ScalingLaw& law = kBesiroglu2024;
  for (const double tokens : {1e10, 1e12, 15e12})
    for (const double parameters : {135e6, 8e9, 400e9}) {
      constexpr double kStep = 1e-4;
      const double numeric =
          (law.loss(parameters, tokens * std::exp(-kStep)) - law.loss(parameters, tokens * std::exp(kStep))) /
          (2 * kStep);
      CHECK(law.slope(tokens) == Approx(numeric).epsilon(1e-5));
    }
}

TEST_CASE("ScalingLaw::slope: matches figures for 100B and 1T and 15T tokens", "[tokens]") {
  CHECK(kBesiroglu2024.slope(100e9) == Approx(0.072).margin(0.0005));
  CHECK(kBesiroglu2024.slope(1e12) == Approx(0.031).margin(0.0005));
  CHECK(kBesiroglu2024.slope(15e12) == Approx(0.012).margin(0.0005));
}

TEST_CASE("break_even_gap: a speedup of 1.39 breaks even at 0.010 nats for 1T tokens and 0.0038 for 15T",
          "[tokens]") {
  CHECK(break_even_gap(kBesiroglu2024.slope(1e12), 1.39) == Approx(0.0102).margin(0.0001));
  CHECK(break_even_gap(kBesiroglu2024.slope(15e12), 1.39) == Approx(0.0038).margin(0.0001));
  // At that gap the tokens grow by the factor that the speedup saves.
  CHECK(token_factor(break_even_gap(0.031, 1.39), 0.031) == Approx(1.39));
}

TEST_CASE("exact_token_factor: makes up for the gap and is at least the first-order factor", "[tokens]") {
  const ScalingLaw& law = kBesiroglu2024;
  for (const double tokens : {1e12, 15e12})
    for (const double gap : {0.0005, 0.005, 0.015}) {
      const double factor = law.exact_token_factor(gap, tokens).value();
      CHECK(law.loss(8e9, tokens * factor) + gap == Approx(law.loss(8e9, tokens)).epsilon(1e-9));
      CHECK(factor >= token_factor(gap, law.slope(tokens)));
    }
  CHECK_FALSE(law.exact_token_factor(0.1, 15e12));  // more than tokens can still remove
  CHECK(law.exact_token_factor(0, 1e12).value() == Approx(1));
  CHECK(law.exact_token_factor(-0.01, 1e12).value() < 1);
}

TEST_CASE("token_words: formats counts with T and B suffixes", "[tokens]") {
  CHECK(token_words(1e12) == "1T");
  CHECK(token_words(15e12) == "15T");
  CHECK(token_words(2.5e9) == "2.5B");
  CHECK(token_words(512) == "512");
}
