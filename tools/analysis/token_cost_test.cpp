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

TEST_CASE("break_even_gap: a speedup of 1.4 breaks even at 0.0098 nats for 1T tokens and 0.0037 for 15T",
          "[tokens]") {
  // To first order it would be 0.0105 and 0.0039.
  CHECK(break_even_gap(kBesiroglu2024.slope(1e12), 1.4) == Approx(0.00985).margin(0.00005));
  CHECK(break_even_gap(kBesiroglu2024.slope(15e12), 1.4) == Approx(0.00366).margin(0.00005));
  // At that gap the tokens grow by the factor that the speedup saves, exactly.
  for (const double speedup : {0.9, 1.05, 1.4, 3.0})
    for (const ScalingLaw* law : kScalingLaws) {
      const double gap = break_even_gap(law->slope(1e12), speedup, law->beta);
      CHECK(token_factor(gap, law->slope(1e12), law->beta) == Approx(speedup));
      CHECK(law->loss(8e9, 1e12 * speedup) + gap == Approx(law->loss(8e9, 1e12)).epsilon(1e-12));
    }
  const BreakEvenRange range = break_even_range(1e12, 1.4);
  CHECK(range.low == Approx(0.0097).margin(0.0001));
  CHECK(range.high == Approx(0.0161).margin(0.0001));
}

TEST_CASE("token_factor: makes up for the gap and exceeds the first-order factor", "[tokens]") {
  const ScalingLaw& law = kBesiroglu2024;
  for (const double tokens : {1e12, 15e12})
    for (const double gap : {0.0005, 0.005, 0.015}) {
      const double slope = law.slope(tokens), factor = token_factor(gap, slope);
      CHECK(law.loss(8e9, tokens * factor) + gap == Approx(law.loss(8e9, tokens)).epsilon(1e-9));
      CHECK(factor > std::exp(gap / slope));
    }
  CHECK(std::isinf(token_factor(0.1, law.slope(15e12))));  // more than tokens can still remove
  CHECK(token_factor(0, law.slope(1e12)) == Approx(1));
  CHECK(token_factor(-0.01, law.slope(1e12)) < 1);
}

TEST_CASE("token_words: formats counts with T and B suffixes", "[tokens]") {
  CHECK(token_words(1e12) == "1T");
  CHECK(token_words(15e12) == "15T");
  CHECK(token_words(2.5e9) == "2.5B");
  CHECK(token_words(512) == "512");
}
